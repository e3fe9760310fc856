/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a ZeRO tag, as zero_to_fp32.py writes them: a directory with a few
 * large files, of safetensors or of torch.save.
 *
 * pytorch_model.bin is the torch.save of a dict.  Each tensor has a storage of
 * its own, exactly as long as the tensor.  In the script's file the tensors of
 * stages 1 and 2 are views of a whole group, and those of stage 3 are followed
 * by the padding of the ranks' parts.
 */
#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/views/adapter_dirs.h"
#include "ckpt/views/view_impl.h"
#include "ckpt/views/config_files.h"
#include "ckpt/views/weights_split.h"

struct view_weights {
	struct view view;
	const struct format *format;
	struct adapter_dirs adapters;
	const char **names; /* of weights in the files; NULL: the weight is in no file */
	const char **dirs;  /* names of the adapters' directories */
	struct arena arena;
	size_t *tensors; /* indices of the saved weights, grouped by file */
	struct weights_split split;
	struct config_files config_files;
};

enum { ROOT, INDEX, FILES, SIDECAR, DIRS, DIRS_WEIGHTS, DIRS_CONFIG };

static const struct format {
	const char *stem, *suffix, *index;
	bool safetensors;
} formats[] = {
	[VIEW_HF] = { "model", "safetensors", "model.safetensors.index.json", true },
	[VIEW_FP32] = { "pytorch_model", "bin", "pytorch_model.bin.index.json", false },
};

/* PEFT loads one file. */
static const struct format adapter_format = { "adapter_model", "safetensors", NULL, true };

static struct view_weights *weights_of(struct view *v)
{
	return (struct view_weights *)v;
}

/* Return the row with a number. */
static const struct param *row_of(const struct view_weights *x, size_t weight)
{
	return x->view.c->order[weight];
}

/* Weights from Hugging Face keep their type, unless another is requested. */
static enum dtype dtype_of(const struct view_weights *x, size_t weight)
{
	const enum dtype want = x->view.options.dtype;
	const bool narrow = want == DTYPE_F16 || want == DTYPE_BF16;
	const struct param *w = row_of(x, weight);

	if (!x->format->safetensors)
		return checkpoint_dtype(w, DTYPE_F32);
	return !x->view.c->ranks && !narrow && want != DTYPE_F32
		       ? w->dtype
		       : checkpoint_dtype(w, narrow ? want : DTYPE_F32);
}

/* Can a file of this format have a weight? */
static bool can_hold(const struct view_weights *x, size_t weight)
{
	const struct param *w = row_of(x, weight);

	return !x->format->safetensors ||
	       (safetensors_knows(dtype_of(x, weight), w->ndim) && utf8_is(w->name));
}

static uint64_t bytes_of(const struct view_weights *x, size_t weight)
{
	return row_of(x, weight)->numel * dtype_size(dtype_of(x, weight));
}

static int name_file(const struct entry *e, char out[NAME_MAX + 1])
{
	const struct view_weights *x = weights_of(e->view);

	weights_split_name(&x->split, x->format->stem, x->format->suffix, e->i, out);
	return 1;
}

/* Append the elements of a weight to a new storage of `t`, and fill in `t`. */
static void add_storage(const struct entry *e, struct file_layout *d, size_t weight,
			struct tensor *t)
{
	const struct view_weights *x = weights_of(e->view);
	const struct param *w = row_of(x, weight);
	struct extent_map *map;

	tensor_init(t, dtype_of(x, weight), w->shape, w->ndim, w->requires_grad);
	map = layout_add_storage(d, t);
	if (d->extents)
		layout_note(d, checkpoint_weights(e->view->c, w, t->dtype, map, &d->gathers, d->err));
}

/* Write the header for `n` weights, and add their storages in its order. */
static void lay_out_safetensors(const struct entry *e, struct file_layout *d,
				const size_t *weights, const char *const *names, size_t n)
{
	const struct view_weights *x = weights_of(e->view);
	struct stored *v = arena_alloc(&d->a, (n + 1) * sizeof(*v));
	size_t *order = arena_alloc(&d->a, (n + 1) * sizeof(*order));
	struct tensor t;

	if (!v || !order)
		return;
	for (size_t i = 0; i < n; i++) {
		const struct param *w = row_of(x, weights[i]);

		v[i] = (struct stored){
			.name = names[i],
			.dtype = dtype_of(x, weights[i]),
			.ndim = w->ndim,
			.shape = w->shape,
			.numel = w->numel,
		};
	}
	layout_note(d, safetensors_write_header(v, n, order, &d->head, d->err));
	for (size_t i = 0; i < n && !layout_failed(d); i++)
		add_storage(e, d, weights[order[i]], &t);
}

/* Make the dict to pickle.  The split puts a tensor before the tensors tied to it. */
static struct value *make_dict(const struct entry *e, struct file_layout *d,
			       const size_t *weights, size_t n)
{
	const struct view_weights *x = weights_of(e->view);
	const size_t nrows = e->view->c->norder;
	struct value *dict = value_new(&d->a, VALUE_DICT);
	/* Values, by weight. */
	struct value **values = arena_alloc(&d->a, (nrows + 1) * sizeof(struct value *));
	struct tensor t;

	for (size_t i = 0; i < n && !layout_failed(d); i++) {
		const size_t k = weights[i];
		const struct param *same = row_of(x, k)->same;

		if (!same) {
			add_storage(e, d, k, &t);
			values[k] = tensor_to_value(&d->a, &t);
		}
		value_put(&d->a, dict, x->names[k], values[same ? same->number : k]);
	}
	return dict;
}

/* The names of `n` weights in the files; NULL if memory is short. */
static const char **names_of(const struct view_weights *x, struct file_layout *d,
			     const size_t *weights, size_t n)
{
	const char **names = arena_alloc(&d->a, (n + 1) * sizeof(*names));

	for (size_t i = 0; names && i < n; i++)
		names[i] = x->names[weights[i]];
	return names;
}

static struct value *lay_out_file(const struct entry *e, struct file_layout *d)
{
	const struct view_weights *x = weights_of(e->view);
	const size_t *begin = &x->split.begin[e->i];
	const size_t *weights = x->tensors + begin[0], n = begin[1] - begin[0];
	const char **names;

	if (!x->format->safetensors)
		return make_dict(e, d, weights, n);
	names = names_of(x, d, weights, n);
	if (names)
		lay_out_safetensors(e, d, weights, names, n);
	return NULL;
}

static struct value *lay_out_dir_weights(const struct entry *e, struct file_layout *d)
{
	const struct adapter_dir *dir = &weights_of(e->view)->adapters.v[e->dir];

	lay_out_safetensors(e, d, dir->weights, dir->names, dir->n);
	return NULL;
}

static struct value *lay_out_index(const struct entry *e, struct file_layout *d)
{
	const struct view_weights *x = weights_of(e->view);
	const char **names = names_of(x, d, x->tensors, x->split.n);

	if (names)
		layout_note(d, weights_split_index(&x->split, x->format->stem, x->format->suffix,
						   names, &d->head, d->err));
	return NULL;
}

static int name_dir_config(const struct entry *e, char out[NAME_MAX + 1])
{
	const struct adapter_dir *dir = &weights_of(e->view)->adapters.v[e->dir];

	return dir->config_files->config ? view_set_name(out, ADAPTER_CONFIG, "") : 0;
}

static void describe_dir_config(const struct entry *e, struct entry_attrs *out)
{
	const struct config_files *s = weights_of(e->view)->adapters.v[e->dir].config_files;

	*out = view_copy_of(s->config, s->v, s->shards);
}

/* Check that weights which need computing can be computed. */
static int weights_check(struct view *v, struct errmsg *err)
{
	const struct checkpoint *c = v->c;
	struct errmsg why = { "" };
	int rc = 0;

	for (size_t i = 0; !rc && i < c->norder; i++)
		if (c->order[i]->states)
			rc = checkpoint_check_param(c->order[i], c->order[i]->states->v, &why);
	return rc ? errmsg_set(err, rc, "%s: %s", v->c->path, why.text) : 0;
}

void view_warn_of_weights(const struct checkpoint *c, const struct errmsg_sink *to)
{
	errmsg_list_put(&c->left_out, to);
	if (!c->ranks)
		c->ops->warn(c, to);
}

static void weights_warn(struct view *v, const struct errmsg_sink *to)
{
	if (weights_of(v)->config_files.missing)
		errmsg_put(to, "%s", weights_of(v)->config_files.missing);
}

static void weights_lack(struct view *v, const struct errmsg_sink *to)
{
	const struct view_weights *x = weights_of(v);

	view_warn_of_weights(v->c, to);
	for (size_t i = 0; i < v->c->norder; i++)
		if (!can_hold(x, i))
			errmsg_put(to, "%s: left out of TAG_hf: safetensors has no %s",
				   row_of(x, i)->name,
				   utf8_is(row_of(x, i)->name) ? dtype_name(dtype_of(x, i))
							       : "names that are not UTF-8");
	adapter_dirs_warn(&x->adapters, to);
}

static void weights_close(struct view *v)
{
	struct view_weights *x = weights_of(v);

	adapter_dirs_done(&x->adapters);
	arena_done(&x->arena);
	free(x->tensors);
	weights_split_done(&x->split);
	config_files_done(&x->config_files);
}

/* Name the weights in the files. */
static int name_weights(struct view_weights *x, struct errmsg *err)
{
	const struct checkpoint *c = x->view.c;
	int rc = x->format->safetensors ? adapter_dirs_find(&x->adapters, c, err) : 0;

	if (rc)
		return rc;
	if (x->adapters.top)
		x->format = &adapter_format;
	x->names = x->adapters.top ? x->adapters.names
				   : arena_alloc(&x->arena, (c->norder + 1) * sizeof(*x->names));
	for (size_t i = 0; x->names && i < c->norder; i++)
		if (!can_hold(x, i))
			x->names[i] = NULL;
		else if (!x->adapters.top)
			x->names[i] = c->order[i]->name;
	return x->names ? 0 : errmsg_nomem(err, c->path);
}

/* Find the files that are copied beside the weights, and name the directories. */
static int find_config_files(struct view_weights *x, struct errmsg *err)
{
	struct adapter_dirs *d = &x->adapters;
	struct view *v = &x->view;
	const char *more = v->options.hf_config;
	const char *top = d->top ? d->top->name : NULL;
	const int rc = config_files_find(&x->config_files, v->c, top, more, err)
			       ?: adapter_dirs_configure(d, v->c, more, &x->config_files, err);

	if (rc)
		return rc;
	x->dirs = arena_alloc(&x->arena, (d->n + 1) * sizeof(*x->dirs));
	for (size_t i = 0; x->dirs && i < d->n; i++)
		x->dirs[i] = d->v[i].one->name;
	return x->dirs ? 0 : errmsg_nomem(err, v->c->path);
}

/*
 * Assign weights to files.  safetensors stores tied weights once, under the
 * name that comes first in the state dict.  transformers keeps the same name:
 * its models declare the others as tied to it.  PEFT stores each.
 */
static int split_weights(struct view_weights *x, struct errmsg *err)
{
	const size_t n = x->view.c->norder;
	const bool adapter = x->adapters.top;
	const uint64_t max = adapter ? UINT64_MAX
				     : x->view.options.shard_size ?: WEIGHTS_SPLIT_SIZE;
	uint64_t *len = calloc(n + 1, sizeof(*len));
	size_t *scratch = calloc(3 * (n + 1), sizeof(*scratch));
	/* Indexed by number of the saved weights: */
	size_t *same = scratch, *saved = scratch + n + 1;
	size_t *number = saved + n + 1; /* indexed by weight */
	size_t k = 0, empty = n;
	int rc = -ENOMEM;

	x->tensors = calloc(n + 1, sizeof(*x->tensors));
	for (size_t i = 0; len && scratch && i < n; i++) {
		const struct param *of = row_of(x, i)->same;
		const bool tied = of && !adapter;

		if (!x->names[i] || (x->format->safetensors && tied))
			continue;
		saved[k] = i;
		number[i] = k;
		len[k] = bytes_of(x, i);
		same[k] = tied ? number[of->number] : k;
		/* All tensors without elements have the address 0 and count as
		 * one. */
		if (!len[k] && empty == n)
			empty = k;
		else if (!len[k])
			same[k] = empty;
		k++;
	}
	if (len && scratch && x->tensors)
		rc = weights_split_init(&x->split, len, same, k, max, err);
	for (size_t i = 0; !rc && i < k; i++)
		x->tensors[i] = saved[x->split.order[i]];
	free(len);
	free(scratch);
	return rc ? errmsg_nomem(err, x->view.c->path) : 0;
}

/* The layouts' errors name only tensors: add the tag. */
static int check_files(struct view *v, struct errmsg *err)
{
	struct errmsg why = { "" };
	uint64_t size;
	int rc = 0;

	for (size_t i = 0; !rc && i < v->groups[FILES].n; i++)
		rc = view_file_size(v, FILES, i, &size, &why);
	for (size_t i = 0; !rc && i < v->groups[DIRS].n; i++)
		rc = view_file_size(v, DIRS_WEIGHTS, i, &size, &why);
	return rc ? errmsg_set(err, rc, "%s: %s", v->c->path, why.text) : 0;
}

static int weights_make(struct view *v, struct errmsg *err)
{
	struct view_weights *x = weights_of(v);
	int rc = v->c->ops->check(v->c, false, err) ?: checkpoint_order(v->c, err);

	x->format = &formats[v->options.type.kind];
	if (!rc)
		rc = name_weights(x, err) ?: split_weights(x, err);
	if (!rc && x->format->safetensors)
		rc = find_config_files(x, err);
	if (rc)
		return rc;

	static const char *const dir_weights[] = { ADAPTER_WEIGHTS };
	const struct entry_group groups[] = {
		{ .n = x->split.nfiles > 1,
		  .names = &x->format->index,
		  .readable_by = &v->names,
		  .lay_out = lay_out_index },
		{ .n = x->split.nfiles, .name = name_file, .lay_out = lay_out_file },
		{ .n = x->config_files.n,
		  .files = x->config_files.v,
		  .shards = x->config_files.shards },
		{ .n = x->adapters.n, .is_dir = true, .names = x->dirs },
		{ .dir = DIRS, .n = 1, .names = dir_weights, .lay_out = lay_out_dir_weights },
		{ .dir = DIRS, .n = 1, .name = name_dir_config, .attrs = describe_dir_config },
	};

	view_set_groups(v, groups, COUNT(groups));
	return check_files(v, err);
}

#define WEIGHTS                                                                            \
	.size = sizeof(struct view_weights), .make = weights_make, .close = weights_close, \
	.check = weights_check, .warn = weights_warn, .lack = weights_lack

const struct view_ops view_hf = {
	.suffix = "_hf",
	.option = "hf",
	.takes = TAKES_DTYPE | TAKES_SHARD_SIZE,
	WEIGHTS,
};

const struct view_ops view_fp32 = {
	.suffix = "_fp32",
	.option = "fp32",
	.takes = TAKES_SHARD_SIZE,
	WEIGHTS,
};
