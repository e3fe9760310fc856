/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint as a PyTorch distributed checkpoint, which torch.distributed.checkpoint
 * loads on any number of ranks: `.metadata` (view_dcp_metadata.c), and one file per tensor
 * with a blob per chunk, each as torch.save writes it without a zip container: that header is an
 * eighth as long, torch reads only the header and the data, and there are no checksums for readers
 * to wait for.
 *
 * Tensors keep the dtype of the checkpoint; the loader converts them to the dtype of
 * its model.
 */
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"
#include "ckpt/format/legacy.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/views/view_dcp_fused.h"
#include "ckpt/views/view_dcp_state.h"
#include "ckpt/views/view_impl.h"

/* Default number of ranks that tensors are cut for, without a view name or option: with it, one,
 * two and four ranks also read exactly their share. */
#define RANKS 8

struct view_dcp {
	struct view view;
	unsigned ranks; /* number of ranks that tensors are cut for */
	struct view_dcp_state state;
	struct errmsg refused; /* reason why there is no optimizer; or empty */
};

enum { ROOT, DIRECTORY };

static struct view_dcp *view_dcp_of(struct view *v)
{
	return (struct view_dcp *)v;
}

static struct value *lay_out_metadata(const struct entry *e, struct file_layout *d)
{
	const struct view_dcp *x = view_dcp_of(e->view);
	const struct view_dcp_dir *dir = &x->state.dirs[e->dir];

	layout_note(d, view_dcp_metadata_write(dir->v, dir->n, x->ranks, &d->head, d->err));
	return NULL;
}

/* Return the file of an entry, or NULL if the directory has fewer files than the other one. */
static const struct view_dcp_file *file_of(const struct entry *e)
{
	const struct view_dcp_dir *d = &view_dcp_of(e->view)->state.dirs[e->dir];

	return e->k < d->nfiles ? &d->files[e->k] : NULL;
}

static int name_file(const struct entry *e, char out[NAME_MAX + 1])
{
	const struct view_dcp_file *f = file_of(e);

	return f ? view_set_name(out, f->name, "") : 0;
}

static int64_t find_file(const struct entry *dir, unsigned group, const char *name)
{
	const struct view_dcp_dir *d = &view_dcp_of(dir->view)->state.dirs[dir->i];
	const struct view_dcp_file *f = array_find(d->files, d->nfiles, sizeof(*d->files), name);

	(void)group;
	return f ? f - d->files : -1;
}

/* Objects come from the optimizer shards. */
static void describe_file(const struct entry *e, struct entry_attrs *out)
{
	const struct view_dcp_file *f = file_of(e);

	/* torch reads each chunk's header separately. */
	out->scattered = true;
	if (f && f->weight == VIEW_DCP_OBJECTS)
		out->readable_by = &e->view->c->readable_by;
}

/* Map all elements of a file's tensor. */
static bool map_tensor(const struct entry *e, struct file_layout *d,
		       const struct view_dcp_file *f, enum dtype dtype, struct extent_map *out)
{
	struct checkpoint *c = e->view->c;
	const struct param *x = c->order[f->weight];
	struct gathers *g = &d->gathers;

	if (f->fused)
		return layout_note(d, view_dcp_fused_extents(c, f->fused, f->state, out, g, d->err));
	return layout_note(d, f->state ? checkpoint_extents(c, x, f->state, out, g, d->err)
				       : checkpoint_weights(c, x, dtype, out, g, d->err));
}

/* Append a blob for each chunk of a tensor, whose elements are `whole`. */
static void add_chunks(struct file_layout *d, const struct view_dcp_entry *e, unsigned ranks,
		       const struct extent_map *whole)
{
	const struct view_dcp_cut cut = view_dcp_cut(e->dtype, e->shape, e->ndim, ranks);
	const size_t row_size = cut.row * dtype_size(e->dtype);
	uint64_t shape[TENSOR_DIMS_MAX], row = 0, next;
	struct extent_map *map;
	struct tensor t;

	memcpy(shape, e->shape, e->ndim * sizeof(*shape));
	do {
		next = view_dcp_cut_end(&cut, row);
		shape[0] = next - row;
		tensor_init(&t, e->dtype, shape, e->ndim, false);
		legacy_add_tensor(&d->head, e->dtype, shape, e->ndim);
		map = layout_add_storage(d, &t);
		if (d->extents)
			layout_need_memory(d, extent_add_range(map, whole, row * row_size,
							       (next - row) * row_size, e->dtype,
							       e->dtype));
		row = next;
	} while (!layout_failed(d) && row < cut.rows);
}

static struct value *lay_out_file(const struct entry *e, struct file_layout *d)
{
	const struct view_dcp *x = view_dcp_of(e->view);
	const struct view_dcp_dir *dir = &x->state.dirs[e->dir];
	const struct view_dcp_file *f = file_of(e);
	struct extent_map whole = { 0 };
	const struct view_dcp_entry *t;

	if (f->weight == VIEW_DCP_OBJECTS) {
		bytebuf_add(&d->head, dir->objects.data, dir->objects.len);
		return NULL;
	}
	t = &dir->v[f->entry];
	if (!d->extents || map_tensor(e, d, f, t->dtype, &whole))
		add_chunks(d, t, x->ranks, &whole);
	extent_done(&whole);
	return NULL;
}

static int view_dcp_check(struct view *v, struct errmsg *err)
{
	return view_check_params(v, err);
}

static void view_dcp_lack(struct view *v, const struct errmsg_sink *to)
{
	if (*view_dcp_of(v)->refused.text)
		errmsg_put(to, "TAG_dcp has the model and no optimizer: %s",
			   view_dcp_of(v)->refused.text);
	if (*view_dcp_of(v)->state.left_out.text)
		errmsg_put(to, "TAG_dcp lacks a setting of the optimizer: %s",
			   view_dcp_of(v)->state.left_out.text);
	view_warn_of_weights(v->c, to);
}

static void view_dcp_close(struct view *v)
{
	view_dcp_state_done(&view_dcp_of(v)->state);
}

/* Is this an entry that DeepSpeed or a foreign source adds to the model states? */
static bool is_internal(const struct value *key)
{
	static const char *const keys[] = {
		"module",
		"buffer_names",
		"optimizer",
		"param_shapes",
		"frozen_param_shapes",
		"frozen_param_fragments",
		KEY_SHARED_PARAMS,
		"lr_scheduler",
		"data_sampler",
		"random_ltd",
		"sparse_tensor_module_names",
		"skipped_steps",
		"global_steps",
		"global_samples",
		"dp_world_size",
		"mp_world_size",
		"checkpoint_parallel_dimensions",
		KEY_DS_CONFIG,
		KEY_DS_VERSION,
	};

	for (size_t i = 0; i < COUNT(keys); i++)
		if (value_is_str(key, keys[i]))
			return true;
	return false;
}

/* Lightning requires meta.pt, which has the values that it passed to DeepSpeed for saving. */
static struct value *lay_out_meta(const struct entry *e, struct file_layout *d)
{
	struct checkpoint *c = e->view->c;
	struct value *out = value_new(&d->a, VALUE_DICT);
	const struct value_dict *from = value_pairs(c->ops->object(c, OBJECT_MODEL, 0, 0, d));

	for (size_t i = 0; from && i < from->n; i++)
		if (!is_internal(from->v[i].key))
			value_put(&d->a, out, from->v[i].key, from->v[i].val);
	return out;
}

static void set_groups(struct view *v)
{
	static const char *const apart[] = { DCP_PAIR_MODEL, DCP_PAIR_OPTIMIZER };
	static const char *const metadata[] = { DCP_METADATA };
	static const char *const meta[] = { "meta.pt" };
	const struct view_dcp_state *s = &view_dcp_of(v)->state;
	const unsigned top = s->apart ? DIRECTORY : ROOT;
	size_t most = 0;

	for (unsigned i = 0; i < s->ndirs; i++)
		if (most < s->dirs[i].nfiles)
			most = s->dirs[i].nfiles;

	const struct entry_group groups[] = {
		{ .dir = ROOT, .is_dir = true, .n = s->apart ? s->ndirs : 0, .names = apart },
		{ .dir = top,
		  .n = 1,
		  .names = metadata,
		  .readable_by = &v->c->readable_by,
		  .lay_out = lay_out_metadata },
		{ .dir = top,
		  .n = most,
		  .name = name_file,
		  .find = find_file,
		  .attrs = describe_file,
		  .lay_out = lay_out_file },
		{ .dir = ROOT,
		  .n = v->options.dcp_style == DCP_LIGHTNING || v->options.dcp_style == DCP_FABRIC,
		  .names = meta,
		  .readable_by = &v->c->readable_by,
		  .lay_out = lay_out_meta },
	};

	view_set_groups(v, groups, COUNT(groups));
}

static int view_dcp_make(struct view *v, struct errmsg *err)
{
	struct view_dcp *x = view_dcp_of(v);
	struct errmsg why = { "" };
	int rc = v->c->ops->check(v->c, false, err) ?: checkpoint_order(v->c, err);

	if (rc)
		return rc;
	rc = v->c->ops->check(v->c, true, &x->refused);
	x->ranks = v->options.type.ranks ?: v->options.dcp_ranks ?: RANKS;
	rc = view_dcp_state_make(&x->state, v->options.dcp_style, v->c, !rc && v->c->ranks, &why);
	if (rc)
		return errmsg_set(err, rc, "%s: %s", v->c->path, why.text);
	set_groups(v);
	return 0;
}

const struct view_ops view_dcp = {
	.suffix = "_dcp",
	.option = "dcp",
	.takes = TAKES_DCP,
	.ranked = true,
	.size = sizeof(struct view_dcp),
	.make = view_dcp_make,
	.close = view_dcp_close,
	.check = view_dcp_check,
	.lack = view_dcp_lack,
};
