/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a ZeRO tag, as zero_to_fp32.py writes them: a directory with a
 * few large files.
 *
 *   0              the root
 *   1              the index of the files, if there are several
 *   16 + i         file i of weights
 *   2^32 + i       sidecar i, such as config.json (PLAN_HF)
 *
 * Everything except the elements is computed when the plan is opened, because
 * the sizes of the files depend on it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/model/geometry.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/plan/plan_universal.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/sidecars.h"
#include "ckpt/weights/weights.h"
#include "ckpt/weights/weights_file.h"
#include "ckpt/weights/weights_split.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/param_extents.h"

#define NODE_INDEX UINT64_C(1)
#define NODE_FILE UINT64_C(16)
#define NODE_SIDECAR (UINT64_C(1) << 32)

struct plan_weights {
	struct plan_over over;
	const struct format *format;
	const struct weights *w; /* belongs to the universal plan */
	struct weights_file_set set;
	size_t *tensors; /* indices of the saved weights, grouped by file */
	struct weights_split split;
	struct weights_file *files; /* split.nfiles of them */
	struct bytebuf index;       /* JSON; empty if there is one file */
	struct sidecars sidecars;
};

static const struct format {
	const char *stem, *suffix, *index;
} formats[] = {
	[PLAN_HF] = { "model", "safetensors", "model.safetensors.index.json" },
	[PLAN_FP32] = { "pytorch_model", "bin", "pytorch_model.bin.index.json" },
};

static struct plan_weights *weights_of(struct plan *p)
{
	return (struct plan_weights *)p;
}

/* --- nodes -------------------------------------------------------------------- */

static struct weights_file *file_of(struct plan_weights *x, uint64_t node)
{
	return node >= NODE_FILE && node - NODE_FILE < x->split.nfiles
		       ? &x->files[node - NODE_FILE]
		       : NULL;
}

static const struct sidecar *sidecar_of(const struct plan_weights *x,
					uint64_t node)
{
	return node >= NODE_SIDECAR && node - NODE_SIDECAR < x->sidecars.n
		       ? &x->sidecars.v[node - NODE_SIDECAR]
		       : NULL;
}

static bool weights_is_dir(const struct plan *p, uint64_t node)
{
	(void)p;
	return node == PLAN_ROOT;
}

static int weights_next(struct plan *p, uint64_t dir, uint64_t *pos,
			struct plan_entry *out, struct errmsg *err)
{
	struct plan_weights *const x = weights_of(p);
	char name[NAME_MAX + 1];
	uint64_t i;

	if (dir != PLAN_ROOT)
		return errmsg_set(err, -ENOTDIR, "not a directory");
	if (*pos == 0 && !x->index.len)
		++*pos;
	i = (*pos)++;
	if (i == 0)
		return plan_set_entry(out, NODE_INDEX, x->format->index, "");
	if (--i < x->split.nfiles) {
		weights_split_name(&x->split, x->format->stem,
				   x->format->suffix, (size_t)i, name);
		return plan_set_entry(out, NODE_FILE + i, name, "");
	}
	i -= x->split.nfiles;
	return i < x->sidecars.n ? plan_set_entry(out, NODE_SIDECAR + i,
						  x->sidecars.v[i].name, "")
				 : 0;
}

/* --- files ---------------------------------------------------------------------- */

static int weights_stat(struct plan *p, uint64_t node, struct plan_stat *out,
			struct errmsg *err)
{
	struct plan_weights *const x = weights_of(p);
	const struct tagdir *const dir = &p->zckpt->dir;
	const struct sidecar *const c = sidecar_of(x, node);
	const struct weights_file *const f = file_of(x, node);

	*out = (struct plan_stat){ .nlink = 1,
				   .mtime_s = dir->optim[0].mtime_s };
	plan_set_file(out, &dir->names);
	if (node == PLAN_ROOT) {
		plan_set_dir(out, &dir->st, &dir->names);
		out->nlink = 2;
	} else if (node == NODE_INDEX && x->index.len) {
		out->size = x->index.len;
	} else if (f) {
		out->size = f->size;
		return plan_set_computed(p, dir, node, out, err);
	} else if (c) {
		out->size = c->size;
		out->mtime_s = c->mtime_s;
		plan_set_file(out, &c->access);
	} else {
		return errmsg_set(err, -ENOENT, "no such file");
	}
	return 0;
}

static int open_index(const struct plan_weights *x, struct vfile **out,
		      struct errmsg *err)
{
	struct bytebuf copy = { 0 };

	bytebuf_add(&copy, x->index.data, x->index.len);
	*out = copy.failed ? NULL : vfile_new_bytes(&copy, err);
	bytebuf_done(&copy);
	return *out ? 0 : errmsg_nomem(err, NULL);
}

static int plan_weights_open_file(struct plan *p, uint64_t node,
				  struct vfile **out, struct errmsg *err)
{
	struct plan_weights *const x = weights_of(p);
	struct weights_file *const f = file_of(x, node);

	if (node == PLAN_ROOT)
		return errmsg_set(err, -EISDIR, "is a directory");
	if (node == NODE_INDEX && x->index.len)
		return open_index(x, out, err);
	if (f)
		return weights_file_open(f, &x->set, !p->options.crc_zero, out,
					 err);
	if (!sidecar_of(x, node))
		return errmsg_set(err, -ENOENT, "no such file");
	*out = vfile_new_verbatim(x->sidecars.shards,
				  (uint32_t)(node - NODE_SIDECAR), err);
	return *out ? 0 : -ENOMEM;
}

/* --- the whole -------------------------------------------------------------------- */

/* Check that weights which need computing can be computed. */
static int weights_check(struct plan *p, struct errmsg *err)
{
	const struct weights *const w = weights_of(p)->w;
	struct errmsg why = { "" };
	int rc = 0;

	for (size_t i = 0; !rc && i < w->n; i++) {
		const struct param *const param = w->v[i]->param;
		struct geometry g;

		if (!param || !param->computed)
			continue;
		rc = model_geometry(param, &g, &why);
		if (rc)
			break;
		rc = param_extents_check(param, &g, NULL, w->v[i]->dtype, &why);
		geometry_done(&g);
	}
	return rc ? errmsg_set(err, rc, "%s: %s", p->zckpt->dir.path, why.text)
		  : 0;
}

static int weights_warning(struct plan *p, size_t *pos, struct errmsg *out)
{
	const struct weights *const w = weights_of(p)->w;

	if (*pos >= w->nwarnings)
		return 0;
	errmsg_set(out, 0, "%s", w->warnings[(*pos)++]);
	return 1;
}

static void weights_close(struct plan *p)
{
	struct plan_weights *const x = weights_of(p);

	for (size_t i = 0; x->files && i < x->split.nfiles; i++)
		weights_file_done(&x->files[i]);
	free(x->files);
	free(x->tensors);
	weights_split_done(&x->split);
	bytebuf_done(&x->index);
	sidecars_done(&x->sidecars);
	plan_over_close(&x->over);
}

static const struct plan_ops weights_ops = {
	.close = weights_close,
	.check = weights_check,
	.warning = weights_warning,
	.is_dir = weights_is_dir,
	.next = weights_next,
	.stat = weights_stat,
	.file_open = plan_weights_open_file,
	.json = plan_files_json,
};

/* --- making it ----------------------------------------------------------------------- */

/*
 * Assign weights to files.  safetensors stores tied weights once, under the
 * name that comes first in the state dict.  transformers keeps the same name:
 * its models declare the others as tied to it.
 */
static int plan_weights_split(struct plan_weights *x, struct errmsg *err)
{
	const size_t n = x->w->n;
	uint64_t *const len = calloc(n + 1, sizeof(*len));
	size_t *const same = calloc(n + 1, sizeof(*same));
	size_t *const saved = calloc(n + 1, sizeof(*saved));
	size_t *const number = calloc(n + 1, sizeof(*number));
	size_t k = 0, empty = n;
	int rc = len && same && saved && number
			 ? 0
			 : errmsg_nomem(err, x->over.plan.zckpt->dir.path);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct weight *const w = x->w->v[i];

		if (x->set.safetensors && w->same != i)
			continue;
		saved[k] = i;
		number[i] = k;
		len[k] = weights_file_bytes(&x->set, i);
		same[k] = w->same == i ? k : number[w->same];
		/* All tensors without elements have the address 0 and count as
		 * one. */
		if (!len[k] && empty == n)
			empty = k;
		else if (!len[k])
			same[k] = empty;
		k++;
	}
	if (!rc)
		rc = weights_split_init(&x->split, len, same, k,
					x->over.plan.options.shard_size
						? x->over.plan.options.shard_size
						: WEIGHTS_SPLIT_SIZE,
					err);
	x->tensors = calloc(n + 1, sizeof(*x->tensors));
	if (!rc && !x->tensors)
		rc = errmsg_nomem(err, x->over.plan.zckpt->dir.path);
	for (size_t i = 0; !rc && i < k; i++)
		x->tensors[i] = saved[x->split.order[i]];
	free(len);
	free(same);
	free(saved);
	free(number);
	return rc;
}

static int plan_weights_lay_out(struct plan_weights *x, struct errmsg *err)
{
	const struct weights_split *const s = &x->split;
	int rc = 0;

	x->files = calloc(s->nfiles, sizeof(*x->files));
	if (!x->files)
		return errmsg_nomem(err, x->over.plan.zckpt->dir.path);
	for (size_t i = 0; !rc && i < s->nfiles; i++) {
		struct weights_file *const f = &x->files[i];

		weights_split_name(s, x->format->stem, x->format->suffix, i,
				   f->stem);
		*strrchr(f->stem, '.') = '\0';
		f->tensors = x->tensors + s->begin[i];
		f->n = s->begin[i + 1] - s->begin[i];
		rc = weights_file_init(f, &x->set, err);
	}
	return rc;
}

static int make_index(struct plan_weights *x, struct errmsg *err)
{
	const char **names;
	int rc;

	if (x->split.nfiles == 1)
		return 0;
	names = calloc(x->split.n + 1, sizeof(*names));
	if (!names)
		return errmsg_nomem(err, x->over.plan.zckpt->dir.path);
	for (size_t i = 0; i < x->split.n; i++)
		names[x->split.order[i]] = x->w->v[x->tensors[i]]->name;
	rc = weights_split_index(&x->split, x->format->stem, x->format->suffix,
				 names, &x->index, err);
	free(names);
	return rc;
}

static int weights_make(struct plan *p, struct errmsg *err)
{
	struct plan_weights *const x = weights_of(p);
	const struct plan_options *const o = &p->options;
	struct zero_checkpoint *const r = p->zckpt;
	struct errmsg why = { "" };
	int rc;

	x->format = &formats[o->kind];
	rc = zckpt_profiles(r, err);
	if (!rc)
		rc = plan_universal_weights(x->over.universal, &x->w, err);
	x->set = (struct weights_file_set){
		.w = x->w,
		.r = r,
		.shards = p->shards,
		.dtype = o->kind == PLAN_HF && (o->dtype == DTYPE_F16 ||
						o->dtype == DTYPE_BF16)
				 ? o->dtype
				 : DTYPE_F32,
		.safetensors = o->kind == PLAN_HF,
	};
	if (!rc)
		rc = plan_weights_split(x, err);
	if (!rc) {
		/* Errors from here on name only tensors: add the tag. */
		rc = plan_weights_lay_out(x, &why);
		if (rc)
			errmsg_set(err, rc, "%s: %s", r->dir.path, why.text);
	}
	if (!rc)
		rc = make_index(x, err);
	if (!rc && o->kind == PLAN_HF)
		rc = sidecars_find(&x->sidecars, r->dir.path, err);
	return rc;
}

const struct plan_over_kind plan_weights = {
	.ops = &weights_ops,
	.size = sizeof(struct plan_weights),
	.make = weights_make,
};
