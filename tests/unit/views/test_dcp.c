/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The PyTorch distributed checkpoint of every checkpoint in tests/good, and of one that is
 * large enough to be cut: `.metadata` describes the files, and the tensors equal those of
 * the universal tree bit for bit.  Prints a line per failed check.
 *
 *     test_dcp [DIRECTORY [CASE]...]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/names.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/goodcase.h"
#include "tests/support/sampled.h"
#include "tests/support/walk.h"

#define KEY_LEN 600

struct dcp {
	struct good_tally tally;
	struct view *universal, *p;
	struct arena arena;
	/* Lists of `.metadata`, in the same order: */
	const struct value_dict *tensors, *paths, *places;
	size_t place;            /* index of the next one in `places` */
	unsigned equal, chunks;  /* tensors compared; the largest number of chunks */
	unsigned members, steps; /* names in `params`; `step` tensors */
};

/* Return argument `i` of a call or a class; NULL if there is none. */
static const struct value *argument(const struct value *call, size_t i)
{
	return call && call->kind == VALUE_REDUCE ? value_item(call->obj->args, i)
						  : NULL;
}

/* Read a file; the caller frees .p, which is NULL after an error. */
static struct span read_file(struct view *v, uint64_t dir, const char *name)
{
	uint64_t size = 0;
	const uint8_t *bytes = walk_read(v, dir, name, &size, NULL);

	return (struct span){ bytes, (size_t)size };
}

/* Read the tensor that a torch.save file has as its root or under "param", in row-major order; the
 * caller frees `*out`. */
static bool read_tensor(struct span file, struct tensor *t, uint8_t **out)
{
	struct source src;
	struct ptfile pt;
	uint64_t at;
	bool ok;

	source_init_span(&src, "blob", file);
	if (!file.p || ptfile_open_source(&pt, &src, NULL))
		return false;
	ok = ptfile_tensor(&pt, value_find(pt.root, "param") ?: pt.root, "it", t,
			   &at, NULL) == 0;
	if (ok) {
		const size_t item = dtype_size(t->dtype);

		*out = xrealloc(NULL, t->numel * item + 1);
		for (size_t i = 0; i < t->numel; i++)
			memcpy(*out + i * item,
			       file.p + at + tensor_place(t, i) * item, item);
	}
	ptfile_close(&pt);
	return ok;
}

static bool same_sizes(const struct value *sizes, const uint64_t *shape,
		       unsigned ndim)
{
	const struct value_seq *const v = value_items(sizes);
	uint64_t n;

	for (unsigned i = 0; v && v->n == ndim && i < ndim; i++)
		if (!value_get_count(v->v[i], &n) || n != shape[i])
			return false;
	return v && v->n == ndim;
}

/* Take the next entry of storage_data, which must describe the chunk at `offset` (NULL: an object)
 * of `key`, and return its blob.  `file` caches the file `*name`. */
static bool next_blob(struct dcp *d, const char *key, const uint64_t *offset,
		      unsigned ndim, struct span *file, const char **name,
		      uint64_t *end, struct span *blob)
{
	const struct value *index, *info, *where;
	const char *path;
	uint64_t at, len;

	if (d->place == d->places->n)
		return false;
	index = d->places->v[d->place].key;
	info = d->places->v[d->place++].val;
	where = argument(index, 1);
	if (strcmp(value_cstr(argument(index, 0)), key) != 0 ||
	    !(offset ? same_sizes(where, offset, ndim) : !where) ||
	    !value_get_count(argument(info, 1), &at) ||
	    !value_get_count(argument(info, 2), &len))
		return false;
	path = value_cstr(argument(info, 0));
	if (!*name || strcmp(*name, path) != 0) {
		free((void *)file->p);
		*file = read_file(d->p, VIEW_ROOT, path);
		*name = path;
	}
	if (!file->p || at > file->len || len > file->len - at)
		return false;
	*blob = (struct span){ file->p + at, len };
	*end = at + len;
	return true;
}

/* Read the chunks, which must cover the tensor in order; NULL if they do not. */
static uint8_t *read_chunks(struct dcp *d, const char *key,
			    const struct value *meta, struct tensor *whole)
{
	const struct value_seq *const chunks =
		value_items(argument(meta, 2));
	const struct value *const properties = argument(meta, 0);
	const struct value *const dtype = argument(properties, 0);
	uint64_t offset[TENSOR_DIMS_MAX] = { 0 }, end = 0, got = 0;
	struct span file = { NULL, 0 }, blob;
	const char *name = NULL;
	uint8_t *all = NULL, *part;
	struct tensor t;
	bool ok = chunks && chunks->n && dtype &&
		  tensor_set_shape(whole, argument(meta, 1), NULL) == 0;

	for (size_t i = 0; ok && i < chunks->n; i++) {
		const struct value *const c = chunks->v[i];
		size_t len;

		ok = same_sizes(argument(c, 0), offset, whole->ndim) &&
		     next_blob(d, key, offset, whole->ndim, &file, &name, &end,
			       &blob) &&
		     read_tensor(blob, &t, &part);
		if (!ok)
			break;
		ok = same_sizes(argument(c, 1), t.shape, t.ndim) &&
		     value_is_global(dtype, "torch", dtype_name(t.dtype));
		len = t.numel * dtype_size(t.dtype);
		all = xrealloc(all, got + len + 1);
		memcpy(all + got, part, len);
		got += len;
		offset[0] += t.ndim ? t.shape[0] : 1;
		whole->dtype = t.dtype;
		free(part);
	}
	if (ok && d->chunks < chunks->n)
		d->chunks = (unsigned)chunks->n;
	/* 0-d states share a file. */
	ok = ok && got == whole->numel * dtype_size(whole->dtype) &&
	     (whole->ndim == 0 || end == file.len);
	free((void *)file.p);
	if (!ok)
		free(all);
	return ok ? all : NULL;
}

/* Compare elements with those of a universal tensor, which is float32 if there is no
 * optimizer.  Either may end with rows of padding. */
static bool same_elements(const struct dcp *d, const struct tensor *own,
			  const uint8_t *have, const struct tensor *t,
			  const uint8_t *bytes)
{
	const uint64_t n = own->numel < t->numel ? own->numel : t->numel;
	const size_t len = n * dtype_size(own->dtype);
	uint8_t *const wide = xrealloc(NULL, len + 1);
	bool ok = own->dtype == t->dtype;

	if (ok) {
		memcpy(wide, bytes, len);
	} else if (!view_checkpoint(d->universal)->ranks && own->dtype == DTYPE_F32) {
		cast(t->dtype, bytes, DTYPE_F32, wide, n);
		ok = true;
	}
	ok = ok && memcmp(have, wide, len) == 0;
	free(wide);
	return ok;
}

/* Compare a tensor with the universal tree's if the optimizer owns it or is missing. */
static bool is_universal(struct dcp *d, const char *param, const char *state,
			 const struct tensor *t, const uint8_t *bytes)
{
	const struct checkpoint *c = view_checkpoint(d->universal);
	const struct param *owned = checkpoint_find(c, param);
	char name[KEY_LEN];
	struct tensor own;
	uint8_t *have;
	struct span file;
	uint64_t node;
	bool ok = true;

	if (c->ranks && (!owned || !owned->first))
		return true;
	if (view_lookup(d->universal, VIEW_ZERO, param, &node, NULL))
		return false;
	snprintf(name, sizeof(name), "%s.pt", state);
	file = read_file(d->universal, node, name);
	if (read_tensor(file, &own, &have)) {
		ok = same_elements(d, &own, have, t, bytes);
		d->equal += ok;
		free(have);
	}
	free((void *)file.p);
	return ok;
}

static bool check_tensor(struct dcp *d, const char *key,
			 const struct value *meta, const struct value_seq *path)
{
	const char *const top = value_cstr(path->v[0]);
	struct tensor t = { 0 };
	uint8_t *const bytes = read_chunks(d, key, meta, &t);
	bool ok = bytes;

	if (ok && path->n == 2 && strcmp(top, "model") == 0)
		ok = is_universal(d, value_cstr(path->v[1]), "fp32", &t, bytes);
	else if (ok && path->n == 4 && strcmp(top, "optim") == 0)
		ok = is_universal(d, value_cstr(path->v[2]),
				  value_cstr(path->v[3]), &t, bytes);
	else
		ok = false;
	d->steps += path->n == 4 && strcmp(value_cstr(path->v[3]), "step") == 0;
	free(bytes);
	return ok;
}

/* Check that an object is readable, and count the names in `params` that exist. */
static bool check_object(struct dcp *d, const char *key,
			 const struct value_seq *path)
{
	struct span file = { NULL, 0 }, blob;
	const char *name = NULL;
	struct source src;
	struct ptfile pt;
	uint64_t end;
	bool ok = next_blob(d, key, NULL, 0, &file, &name, &end, &blob);

	source_init_span(&src, key, blob);
	ok = ok && ptfile_open_source(&pt, &src, NULL) == 0;
	if (ok && value_is_str(path->v[path->n - 1], "params")) {
		const struct value_seq *const names = value_items(pt.root);

		for (size_t i = 0; names && i < names->n; i++) {
			char member[KEY_LEN];

			snprintf(member, sizeof(member), "model.%s",
				 value_cstr(names->v[i]));
			for (size_t k = 0; k < d->tensors->n; k++)
				d->members += value_is_str(d->tensors->v[k].key,
							   member);
		}
	}
	if (ok)
		ptfile_close(&pt);
	free((void *)file.p);
	return ok;
}

/* Join the elements of a path. */
static void join(const struct value_seq *path, const char *between,
		 char text[KEY_LEN])
{
	size_t n = 0;

	text[0] = '\0';
	for (size_t i = 0; path && i < path->n && n < KEY_LEN; i++) {
		const struct value *const v = path->v[i];
		const char *const before = i ? between : "";

		n += (size_t)(v->kind == VALUE_INT
				      ? snprintf(text + n, KEY_LEN - n,
						 "%s%" PRId64, before, v->i)
				      : snprintf(text + n, KEY_LEN - n, "%s%s",
						 before, value_cstr(v)));
	}
}

static void check_entry(struct dcp *d, size_t i)
{
	const char *const key = value_cstr(d->tensors->v[i].key);
	const struct value *const meta = d->tensors->v[i].val;
	const struct value_seq *const path = value_items(d->paths->v[i].val);
	char joined[KEY_LEN];

	d->tally.checks++;
	join(path, ".", joined);
	if (!value_is_str(d->paths->v[i].key, key) || strcmp(joined, key) != 0)
		good_fail(&d->tally, "%s: has another path", key);
	else if (!(argument(meta, 2) ? check_tensor(d, key, meta, path)
					     : check_object(d, key, path)))
		good_fail(&d->tally, "%s: is not what .metadata says", key);
}

/* Count the parameters that the optimizer owns. */
static unsigned count_owned(struct view *v)
{
	const struct checkpoint *c = view_checkpoint(v);
	unsigned n = 0;

	for (size_t i = 0; c->ranks && i < c->nparams; i++)
		n += c->params[i].first != NULL;
	return n;
}

static void check_metadata(struct dcp *d, struct span bytes)
{
	struct errmsg err = { "" };
	struct value *root = NULL;
	unsigned owned;

	if (!bytes.p || pickle_load(bytes, ".metadata", &d->arena, &root, &err)) {
		good_fail(&d->tally, "no .metadata: %s", err.text);
		return;
	}
	d->tensors = value_pairs(argument(root, 0));
	d->paths = value_pairs(argument(root, 1));
	d->places = value_pairs(argument(root, 2));
	if (!d->tensors || !d->paths || !d->places ||
	    d->paths->n != d->tensors->n) {
		good_fail(&d->tally, ".metadata: other attributes");
		return;
	}
	for (size_t i = 0; i < d->tensors->n; i++)
		check_entry(d, i);
	owned = count_owned(d->universal);
	if (d->place != d->places->n)
		good_fail(&d->tally, "more places than chunks");
	if (d->members != owned)
		good_fail(&d->tally, "groups have %u parameters, not %u",
			  d->members, owned);
	if (d->equal < (view_checkpoint(d->universal)->ranks ? owned : d->tensors->n))
		good_fail(&d->tally, "%u tensors are the universal tree's",
			  d->equal);
}

static void check_tag(struct dcp *d, const char *tag, const struct user_rules *rules)
{
	const struct view_options options = { .type.kind = VIEW_UNIVERSAL, .rules = rules };
	const struct view_type type = { .kind = VIEW_DCP };
	struct errmsg err = { "" };
	struct span bytes;

	if (view_open(test_context(), tag, &options, &d->universal, &err) ||
	    view_open_derived(d->universal, &type, &d->p, &err) ||
	    view_check(d->p, &err) || walk_view(d->p, &err)) {
		good_fail(&d->tally, "%s", err.text);
	} else {
		bytes = read_file(d->p, VIEW_ROOT, ".metadata");
		check_metadata(d, bytes);
		free((void *)bytes.p);
	}
	view_close(d->p);
	view_close(d->universal);
	arena_done(&d->arena);
}

static unsigned check_case(const char *dir, const char *name, unsigned *checks)
{
	struct dcp d = { .tally.name = name };
	char path[GOOD_PATH_LEN];
	struct findings digests;
	const struct line *tag;

	snprintf(path, sizeof(path), "%s/%s.digests", dir, name);
	lines_load(&digests, path);
	tag = findings_find(&digests, "tag");
	snprintf(path, sizeof(path), "%s/%s/%s", dir, name,
		 tag ? tag->field[1] : "");
	if (!findings_find(&digests, "refuse"))
		check_tag(&d, path, good_rules(dir, &digests));
	findings_done(&digests);
	*checks += d.tally.checks;
	return d.tally.failures;
}

/* Large tensors are split into chunks. */
static unsigned check_large(int stage)
{
	static const struct mkckpt_param params[] = {
		{ "bias", 1, { 1001 }, 0 },
		{ "embed", 2, { 5001, 300 }, 0 },
		{ "row", 2, { 3, 250001 }, 1 },
		{ "none", 2, { 0, 7 }, 1 },
		{ "cube", 3, { 65, 16, 31 }, 1 },
	};
	const struct mkckpt c = { .stage = stage,
				  .ranks = 3,
				  .params = params,
				  .nparams = COUNT(params),
				  .ngroups = 2 };
	struct dcp d = { .tally.name = "large" };
	char *const dir = mkckpt_new_dir();

	mkckpt_write(&c, dir);
	check_tag(&d, dir, NULL);
	mkckpt_free_dir(dir);
	if (d.chunks != 8)
		good_fail(&d.tally, "%u chunks", d.chunks);
	if (d.steps < COUNT(params) - 1)
		good_fail(&d.tally, "%u steps", d.steps);
	return d.tally.failures;
}

/* Paths that each program uses for a weight, a state, a setting and other values. */
static const struct {
	enum dcp_style style;
	const char *weights, *optim; /* subdirectories, or NULL */
	const char *paths[6];
} styles[] = {
	{ DCP_FSDP2,
	  NULL,
	  NULL,
	  { "model/bias", "optim/state/bias/exp_avg",
	    "optim/param_groups/0/foreach" } },
	{ DCP_FLAT,
	  NULL,
	  NULL,
	  { "model/bias", "optim/state.bias.exp_avg",
	    "optim/param_groups.bias.foreach" } },
	{ DCP_TITAN,
	  NULL,
	  NULL,
	  { "bias", "optimizer/state.bias.exp_avg",
	    "optimizer/param_groups.bias.foreach", "train_state/step",
	    "train_state/ntokens_seen", "lr_scheduler/last_epoch" } },
	{ DCP_TITAN_FUSED,
	  NULL,
	  NULL,
	  { "bias", "optimizer/state.bias.exp_avg",
	    "optimizer/param_groups.bias.foreach", "train_state/step" } },
	{ DCP_ACCELERATE,
	  "pytorch_model_fsdp_0",
	  "optimizer_0",
	  { "model/bias", "optimizer/state/bias/exp_avg",
	    "optimizer/param_groups/0/foreach" } },
	{ DCP_LIGHTNING,
	  NULL,
	  NULL,
	  { "model/bias", "optimizer_0/state/bias/exp_avg",
	    "optimizer_0/param_groups/0/foreach", "state_dict/bias" } },
	{ DCP_FABRIC,
	  NULL,
	  NULL,
	  { "model/bias", "optimizer/state/bias/exp_avg",
	    "optimizer/param_groups/0/foreach" } },
};

/* Return whether the `.metadata` of a directory lists this path. */
static bool has_path(struct view *v, const char *dir, const char *path)
{
	struct arena a = { 0 };
	struct value *root = NULL;
	const struct value_dict *paths = NULL;
	uint64_t node = VIEW_ROOT;
	struct span bytes = { NULL, 0 };
	bool found = false;

	if (!dir || view_lookup(v, VIEW_ROOT, dir, &node, NULL) == 0)
		bytes = read_file(v, node, ".metadata");
	if (bytes.p && pickle_load(bytes, ".metadata", &a, &root, NULL) == 0)
		paths = value_pairs(argument(root, 1));
	for (size_t i = 0; paths && i < paths->n; i++) {
		char text[KEY_LEN];

		join(value_items(paths->v[i].val), "/", text);
		found |= strcmp(text, path) == 0;
	}
	free((void *)bytes.p);
	arena_done(&a);
	return found;
}

/* Check that meta.pt has exactly the values that the program gave DeepSpeed to save. */
static bool has_meta(struct view *v)
{
	const struct span file = read_file(v, VIEW_ROOT, "meta.pt");
	struct source src;
	struct ptfile pt;
	bool ok = false;

	source_init_span(&src, "meta.pt", file);
	if (file.p && ptfile_open_source(&pt, &src, NULL) == 0) {
		const struct value_dict *const d = value_pairs(pt.root);

		ok = d && d->n == 1 &&
		     value_is_str(d->v[0].key, KEY_UC_INFO);
		ptfile_close(&pt);
	}
	free((void *)file.p);
	return ok;
}

static unsigned check_styles(void)
{
	static const struct mkckpt_param params[] = { { "bias", 1, { 5 }, 0 } };
	const struct mkckpt c = { .stage = 1,
				  .ranks = 2,
				  .params = params,
				  .nparams = 1,
				  .ngroups = 1,
				  .tp = 1,
				  .pp = 1 };
	struct good_tally tally = { .name = "style" };
	char *const dir = mkckpt_new_dir();

	mkckpt_write(&c, dir);
	for (size_t i = 0; i < COUNT(styles); i++) {
		const struct view_options options = { .type.kind = VIEW_DCP,
						      .dcp_style =
							      styles[i].style };
		struct errmsg err = { "" };
		struct view *v = NULL;

		if (view_open(test_context(), dir, &options, &v, &err) ||
		    walk_view(v, &err))
			good_fail(&tally, "%zu: %s", i, err.text);
		for (size_t k = 0; v && k < COUNT(styles[i].paths) && styles[i].paths[k];
		     k++)
			if (!has_path(v, k ? styles[i].optim : styles[i].weights,
				      styles[i].paths[k]))
				good_fail(&tally, "no %s", styles[i].paths[k]);
		if (v && styles[i].style >= DCP_LIGHTNING && !has_meta(v))
			good_fail(&tally, "%zu: meta.pt", i);
		view_close(v);
	}
	mkckpt_free_dir(dir);
	return tally.failures;
}

/* A name that fits into the universal tree may be too long with a prefix and a suffix: the
 * tensor's files are numbered. */
static unsigned check_long_name(void)
{
	static const struct view_options options = { .type.kind = VIEW_DCP };
	static const char *const files[] = { "model.#0.distcp",
					     "optim.state.#0.exp_avg.distcp" };
	struct errmsg err = { "" };
	struct view *v = NULL;
	uint64_t node;
	char name[251] = "";
	const struct mkckpt_param params[] = { { name, 1, { 5 }, 0 } };
	const struct mkckpt c = { .stage = 1,
				  .ranks = 2,
				  .params = params,
				  .nparams = 1,
				  .ngroups = 1 };
	struct good_tally tally = { .name = "name" };
	char *const dir = mkckpt_new_dir();

	memset(name, 'x', sizeof(name) - 1);
	mkckpt_write(&c, dir);
	if (view_open(test_context(), dir, &options, &v, &err) || walk_view(v, &err))
		good_fail(&tally, "%s", err.text);
	for (size_t i = 0; v && i < COUNT(files); i++)
		if (view_lookup(v, VIEW_ROOT, files[i], &node, NULL))
			good_fail(&tally, "no %s", files[i]);
	view_close(v);
	mkckpt_free_dir(dir);
	return tally.failures;
}

int main(int argc, char **argv)
{
	unsigned failures = check_styles() + check_long_name();

	for (int stage = 1; stage <= 3; stage++)
		failures += check_large(stage);
	return good_main(argc, argv, ".digests", sampled_step(3), check_case) || failures;
}
