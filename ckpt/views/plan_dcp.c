/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint as a PyTorch distributed checkpoint, which torch.distributed.checkpoint
 * loads on any number of ranks: `.metadata` (dcpview_metadata.c), and one file per tensor
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
#include "ckpt/views/dcpview_fused.h"
#include "ckpt/views/dcpview_state.h"
#include "ckpt/views/plan_impl.h"

/* Default number of ranks that tensors are cut for, without a view name or option: with it, one,
 * two and four ranks also read exactly their share. */
#define RANKS 8

struct plan_dcp {
	struct plan plan;
	unsigned ranks; /* number of ranks that tensors are cut for */
	struct dcpview_state state;
	struct errmsg refused; /* reason why there is no optimizer; or empty */
};

enum { ROOT, DIRECTORY };

static struct plan_dcp *dcpview_of(struct plan *p)
{
	return (struct plan_dcp *)p;
}

static struct value *lay_out_metadata(const struct plan_item *e, struct file_layout *d)
{
	const struct plan_dcp *x = dcpview_of(e->p);
	const struct dcpview_dir *dir = &x->state.dirs[e->dir];

	layout_note(d, dcpview_metadata_write(dir->v, dir->n, x->ranks, &d->head, d->err));
	return NULL;
}

/* Return the file of an entry, or NULL if the directory has fewer files than the other one. */
static const struct dcpview_file *file_of(const struct plan_item *e)
{
	const struct dcpview_dir *d = &dcpview_of(e->p)->state.dirs[e->dir];

	return e->k < d->nfiles ? &d->files[e->k] : NULL;
}

static int name_file(const struct plan_item *e, char out[NAME_MAX + 1])
{
	const struct dcpview_file *f = file_of(e);

	return f ? plan_set_name(out, f->name, "") : 0;
}

static int64_t find_file(const struct plan_item *dir, unsigned group, const char *name)
{
	const struct dcpview_dir *d = &dcpview_of(dir->p)->state.dirs[dir->i];
	const struct dcpview_file *f = array_find(d->files, d->nfiles, sizeof(*d->files), name);

	(void)group;
	return f ? f - d->files : -1;
}

/* Objects come from the optimizer shards. */
static void describe_file(const struct plan_item *e, struct plan_facts *out)
{
	const struct dcpview_file *f = file_of(e);

	/* torch reads each chunk's header separately. */
	out->scattered = true;
	if (f && f->weight == DCPVIEW_OBJECTS)
		out->readable_by = &e->p->c->readable_by;
}

/* Map all elements of a file's tensor. */
static bool map_tensor(const struct plan_item *e, struct file_layout *d,
		       const struct dcpview_file *f, enum dtype dtype, struct extent_map *out)
{
	struct checkpoint *c = e->p->c;
	const struct param *x = c->order[f->weight];
	struct gathers *g = &d->gathers;

	if (f->fused)
		return layout_note(d, dcpview_fused_extents(c, f->fused, f->state, out, g, d->err));
	return layout_note(d, f->state ? checkpoint_extents(c, x, f->state, out, g, d->err)
				       : checkpoint_weights(c, x, dtype, out, g, d->err));
}

/* Append a blob for each chunk of a tensor, whose elements are `whole`. */
static void add_chunks(struct file_layout *d, const struct dcpview_entry *e, unsigned ranks,
		       const struct extent_map *whole)
{
	const struct dcpview_cut cut = dcpview_cut(e->dtype, e->shape, e->ndim, ranks);
	const size_t row_size = cut.row * dtype_size(e->dtype);
	uint64_t shape[TENSOR_DIMS_MAX], row = 0, next;
	struct extent_map *map;
	struct tensor t;

	memcpy(shape, e->shape, e->ndim * sizeof(*shape));
	do {
		next = dcpview_cut_end(&cut, row);
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

static struct value *lay_out_file(const struct plan_item *e, struct file_layout *d)
{
	const struct plan_dcp *x = dcpview_of(e->p);
	const struct dcpview_dir *dir = &x->state.dirs[e->dir];
	const struct dcpview_file *f = file_of(e);
	struct extent_map whole = { 0 };
	const struct dcpview_entry *t;

	if (f->weight == DCPVIEW_OBJECTS) {
		bytebuf_add(&d->head, dir->objects.data, dir->objects.len);
		return NULL;
	}
	t = &dir->v[f->entry];
	if (!d->extents || map_tensor(e, d, f, t->dtype, &whole))
		add_chunks(d, t, x->ranks, &whole);
	extent_done(&whole);
	return NULL;
}

static int dcpview_check(struct plan *p, struct errmsg *err)
{
	return plan_check_params(p, err);
}

static void dcpview_lack(struct plan *p, const struct errmsg_sink *to)
{
	if (*dcpview_of(p)->refused.text)
		errmsg_put(to, "TAG_dcp has the model and no optimizer: %s",
			   dcpview_of(p)->refused.text);
	if (*dcpview_of(p)->state.left_out.text)
		errmsg_put(to, "TAG_dcp lacks a setting of the optimizer: %s",
			   dcpview_of(p)->state.left_out.text);
	plan_warn_of_weights(p->c, to);
}

static void dcpview_close(struct plan *p)
{
	dcpview_state_done(&dcpview_of(p)->state);
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
static struct value *lay_out_meta(const struct plan_item *e, struct file_layout *d)
{
	struct checkpoint *c = e->p->c;
	struct value *out = value_new(&d->a, VALUE_DICT);
	const struct value_dict *from = value_pairs(c->ops->object(c, OBJECT_MODEL, 0, 0, d));

	for (size_t i = 0; from && i < from->n; i++)
		if (!is_internal(from->v[i].key))
			value_put(&d->a, out, from->v[i].key, from->v[i].val);
	return out;
}

static void set_groups(struct plan *p)
{
	static const char *const apart[] = { DCP_PAIR_MODEL, DCP_PAIR_OPTIMIZER };
	static const char *const metadata[] = { DCP_METADATA };
	static const char *const meta[] = { "meta.pt" };
	const struct dcpview_state *s = &dcpview_of(p)->state;
	const unsigned top = s->apart ? DIRECTORY : ROOT;
	size_t most = 0;

	for (unsigned i = 0; i < s->ndirs; i++)
		if (most < s->dirs[i].nfiles)
			most = s->dirs[i].nfiles;

	const struct plan_group groups[] = {
		{ .dir = ROOT, .is_dir = true, .n = s->apart ? s->ndirs : 0, .names = apart },
		{ .dir = top,
		  .n = 1,
		  .names = metadata,
		  .readable_by = &p->c->readable_by,
		  .lay_out = lay_out_metadata },
		{ .dir = top,
		  .n = most,
		  .name = name_file,
		  .find = find_file,
		  .describe = describe_file,
		  .lay_out = lay_out_file },
		{ .dir = ROOT,
		  .n = p->options.dcp_style == DCP_LIGHTNING || p->options.dcp_style == DCP_FABRIC,
		  .names = meta,
		  .readable_by = &p->c->readable_by,
		  .lay_out = lay_out_meta },
	};

	plan_set_groups(p, groups, COUNT(groups));
}

static int dcpview_make(struct plan *p, struct errmsg *err)
{
	struct plan_dcp *x = dcpview_of(p);
	struct errmsg why = { "" };
	int rc = p->c->ops->check(p->c, false, err) ?: checkpoint_order(p->c, err);

	if (rc)
		return rc;
	rc = p->c->ops->check(p->c, true, &x->refused);
	x->ranks = p->options.type.ranks ?: p->options.dcp_ranks ?: RANKS;
	rc = dcpview_state_make(&x->state, p->options.dcp_style, p->c, !rc && p->c->ranks, &why);
	if (rc)
		return errmsg_set(err, rc, "%s: %s", p->c->path, why.text);
	set_groups(p);
	return 0;
}

const struct plan_view plan_dcp = {
	.suffix = "_dcp",
	.option = "dcp",
	.takes = TAKES_DCP,
	.ranked = true,
	.size = sizeof(struct plan_dcp),
	.make = dcpview_make,
	.close = dcpview_close,
	.check = dcpview_check,
	.lack = dcpview_lack,
};
