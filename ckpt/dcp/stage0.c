/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What DeepSpeed saves without ZeRO (runtime/engine.py, _save_checkpoint): the model states
 * of each model-parallel rank have its optimizer, too, or that of DeepSpeed that wraps it
 * for 16 bits (runtime/fp16/unfused_optimizer.py, fused_optimizer.py).  A pipeline's
 * weights are in files of layers (runtime/pipe/module.py); which stage had a layer follows
 * from the number of parameters that its optimizer has.
 */
#include "ckpt/dcp/stage0.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/blobs.h"
#include "ckpt/dcp/stage0_build.h"
#include "ckpt/format/keys.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/format/names.h"
#include "ckpt/io/io.h"
#include "ckpt/pickle/value.h"

#define TIED "tied_modules."

bool stage0_is_dir(const char *path)
{
	const char *const slash = strrchr(path, '/');

	return slash && strcmp(slash + 1, STAGE0_DIR) == 0;
}

/* By rank, and by layer. */
static int by_place(const void *a, const void *b)
{
	const struct stage0_file *const x = a, *const y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static int part_is_missing(const char *dir, size_t rank, struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s/mp_rank_%02zu_model_states.pt: missing",
			  dir, rank);
}

/* Does each tensor-parallel rank have the layers that others have, in one file each? */
static int check_layers(const struct stage0 *s, const char *dir, struct errmsg *err)
{
	for (size_t i = 1; i < s->nlayers; i++)
		if (by_place(&s->layers[i - 1], &s->layers[i]) == 0)
			return errmsg_set(err, -ENOTSUP,
					  "%s: has the layer of %s, too",
					  s->layers[i].path, s->layers[i - 1].path);
	for (size_t i = 0; i < s->nlayers; i++)
		for (unsigned r = 0; r < s->tensor; r++) {
			const struct stage0_file f = { .rank = r,
						       .layer = s->layers[i].layer };

			if (!bsearch(&f, s->layers, s->nlayers, sizeof(f), by_place))
				return errmsg_set(err, -EBADMSG,
						  "%s/layer_%02u-model_%02u-model_states.pt: missing",
						  dir, f.layer, r);
		}
	return 0;
}

static int list_files(struct stage0 *s, const char *dir, const struct dirlist *l,
		      struct errmsg *err)
{
	struct arena *const a = &s->arena;

	s->parts = arena_alloc(a, (l->n + 1) * sizeof(*s->parts));
	s->layers = arena_alloc(a, (l->n + 1) * sizeof(*s->layers));
	s->next = arena_alloc(a, (l->n + 1) * sizeof(*s->next));
	for (size_t i = 0; !a->failed && i < l->n; i++) {
		const struct ckname name = names_parse(l->v[i].name);
		const bool layer = name.kind == TAG_FILE_LAYER;
		char *path;

		if (!layer && name.kind != TAG_FILE_MODEL)
			continue;
		path = arena_alloc(a, strlen(dir) + strlen(l->v[i].name) + 2);
		if (!path)
			break;
		sprintf(path, "%s/%s", dir, l->v[i].name);
		*(layer ? &s->layers[s->nlayers++] : &s->parts[s->nparts++]) =
			(struct stage0_file){
				.path = path,
				.number = (uint32_t)dcp_metadata_add_file(s->m, path),
				.rank = name.mp,
				.layer = name.layer,
			};
	}
	if (a->failed || s->m->nfiles != s->nparts + s->nlayers)
		return errmsg_nomem(err, dir);
	qsort(s->parts, s->nparts, sizeof(*s->parts), by_place);
	qsort(s->layers, s->nlayers, sizeof(*s->layers), by_place);
	s->tensor = s->nlayers ? s->layers[s->nlayers - 1].rank + 1 : 1;
	if (s->tensor > s->nlayers + 1)
		return errmsg_set(err, -EBADMSG, "%s: has %u tensor-parallel ranks, and fewer layers",
				  dir, s->tensor);
	for (size_t i = 0; i < s->nparts; i++)
		if (s->parts[i].rank != i)
			return part_is_missing(dir, i, err);
	if (!s->nparts || s->nparts % s->tensor)
		return part_is_missing(dir, s->nparts, err);
	for (size_t i = s->nlayers; i--;)
		s->next[s->layers[i].rank] = i;
	return check_layers(s, dir, err);
}

static int open_file(struct stage0_file *f, const struct dcp_blobs *b,
		     struct errmsg *err)
{
	struct source src;
	const int rc = dcp_blobs_open(b, f->number, &src, err);

	if (rc)
		return rc;
	f->size = src.size;
	return ptfile_open_source(&f->pt, &src, err);
}

/* Is an optimizer read from model states?  Messages begin with `file`. */
int stage0_check_optimizer(const struct value *root, const char *file,
			   struct errmsg *err)
{
	const struct value *const optimizer = value_find(root, "optimizer");
	const struct value_seq *const experts = value_find_items(root, "num_experts");

	if (!value_pairs(optimizer))
		return errmsg_set(
			err, -ENOTSUP,
			"%s: no optimizer is in it, nor *_optim_states.pt"
			" files beside it: optimizer shards are missing",
			file);
	if (experts && experts->n)
		return errmsg_set(err, -ENOTSUP,
				  "%s: a mixture of experts saved without ZeRO"
				  " (stage 0), whose optimizer is not read",
				  file);
	if (value_find(optimizer, KEY_FP32_GROUPS))
		return errmsg_set(err, -ENOTSUP,
				  "%s: saved without ZeRO (stage 0) by"
				  " BF16_Optimizer, which saves the states of one"
				  " data-parallel rank only",
				  file);
	return 0;
}

static enum stage0_kind kind_of(const struct value *root)
{
	if (!stage0_check_optimizer(root, "", NULL))
		return STAGE0_OPTIMIZER;
	return value_find_pairs(root, "module") ||
			       value_find_items(root, "param_shapes")
		       ? STAGE0_WEIGHTS
		       : STAGE0_NONE;
}

/* Is there something to read in the model states? */
static int check_part(const struct stage0_file *f, struct errmsg *err)
{
	if (kind_of(f->pt.root) != STAGE0_NONE)
		return 0;
	stage0_check_optimizer(f->pt.root, f->path, err);
	return -ENOENT;
}

enum stage0_kind stage0_look(struct uckpt *u, const char *dir)
{
	enum stage0_kind kind = STAGE0_NONE;
	struct ptfile pt;
	struct source src;
	char *path;

	if (asprintf(&path, "%s/" STAGE0_FIRST, dir) < 0)
		return kind;
	if (!io_open(u, path, NULL, &src, NULL) &&
	    !ptfile_open_source(&pt, &src, NULL)) {
		kind = kind_of(pt.root);
		ptfile_close(&pt);
	}
	free(path);
	return kind;
}

/* Do model states say of the checkpoint what the first do, and are they all there? */
static int check_ranks(const struct stage0 *s, struct errmsg *err)
{
	static const char *const keys[] = { "global_steps", "mp_world_size" };
	int64_t first = 0, other;

	for (size_t k = 0; k < COUNT(keys); k++)
		for (size_t i = 0; i < s->nparts; i++) {
			other = -1;
			value_get_int(value_find(s->parts[i].pt.root, keys[k]),
				      &other);
			if (i && other != first)
				return errmsg_set(err, -EBADMSG,
						  "%s: was saved at another step or by"
						  " other ranks than %s",
						  s->parts[i].path, s->parts->path);
			first = other;
		}
	if (first < 0 || (uint64_t)first == s->nparts)
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: is of %lld model-parallel ranks, and the model states"
			  " of %zu are there", s->parts->path, (long long)first,
			  s->nparts);
}

int stage0_add_items(const struct stage0 *s, struct errmsg *err)
{
	struct dcp_metadata *const m = s->m;
	struct dcp_chunk *chunks;

	m->items = arena_alloc(&m->arena, (m->nfiles + 1) * sizeof(*m->items));
	chunks = arena_alloc(&m->arena, (m->nfiles + 1) * sizeof(*chunks));
	for (size_t i = 0; m->items && chunks && i < s->nparts + s->nlayers; i++) {
		const struct stage0_file *const f =
			i < s->nparts ? &s->parts[i] : &s->layers[i - s->nparts];

		chunks[i].file = f->number;
		chunks[i].len = f->size;
		m->items[m->nitems++] = (struct dcp_item){
			.key = "model states", .chunks = &chunks[i], .nchunks = 1
		};
	}
	return m->arena.failed ? errmsg_nomem(err, NULL) : 0;
}

int stage0_list(struct stage0 *s, struct dcp_metadata *m, struct uckpt *u,
		const char *path, struct errmsg *err)
{
	struct dirlist l = { 0 };
	char *dir;
	int rc;

	*s = (struct stage0){ .m = m };
	dir = arena_strndup(&m->arena, path,
			    (size_t)(strrchr(path, '/') - path));
	if (!dir)
		return errmsg_nomem(err, path);
	rc = io_list(u, dir, 0, &l, err);
	rc = rc ?: list_files(s, dir, &l, err);
	dirlist_done(&l);
	if (rc)
		stage0_close(s);
	return rc;
}

int stage0_open(struct stage0 *s, const struct dcp_blobs *b, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < s->nparts; i++)
		rc = open_file(&s->parts[i], b, err) ?: check_part(&s->parts[i], err);
	return rc ?: check_ranks(s, err);
}

const char *stage0_source(const struct stage0 *s)
{
	return value_find_items(s->parts->pt.root, "param_shapes")
		       ? "DeepSpeed checkpoint without its optimizer's files"
		       : "DeepSpeed checkpoint without ZeRO (stage 0)";
}

void stage0_close(struct stage0 *s)
{
	for (size_t i = 0; i < s->nparts; i++)
		if (s->parts[i].pt.root)
			ptfile_close(&s->parts[i].pt);
	arena_done(&s->arena);
	*s = (struct stage0){ 0 };
}

int stage0_item(struct stage0_builder *b, const struct stage0_file *f,
		const struct value *v, const char *key, struct dcp_item *out)
{
	struct tensor t;
	uint64_t at;
	const int rc = ptfile_run(&f->pt, v, key, &t, &at, b->err);

	if (rc)
		return rc;
	return dcp_item_init(out, &b->o->arena, key, f->number, t.dtype, t.ndim, t.shape,
			     t.numel, at)
		       ? errmsg_nomem(b->err, b->file)
		       : 0;
}

static bool is_buffer(const struct stage0_builder *b, const char *name)
{
	return array_find(b->buffers, b->nbuffers, sizeof(*b->buffers), name);
}

static int list_buffers(struct stage0_builder *b)
{
	const struct value_seq *const names =
		value_find_items(b->f->pt.root, "buffer_names");

	b->nbuffers = names ? names->n : 0;
	b->buffers = arena_alloc(&b->o->arena, (b->nbuffers + 1) * sizeof(*b->buffers));
	if (!b->buffers)
		return errmsg_nomem(b->err, b->file);
	for (size_t i = 0; i < b->nbuffers; i++)
		b->buffers[i] = value_cstr(names->v[i]);
	qsort(b->buffers, b->nbuffers, sizeof(*b->buffers), array_by_text);
	return 0;
}

/* The parameter whose elements an item has, or NULL. */
static const struct stage0_param *find_same(const struct stage0_builder *b,
					    const struct dcp_item *t)
{
	size_t pos = 0;
	uint32_t i;

	while (t->numel && hashtab_next(&b->places, hash_number(t->chunks->data),
					&pos, &i)) {
		const struct dcp_item *const w = b->params[i].weight;

		if (w->chunks->file == t->chunks->file &&
		    w->chunks->data == t->chunks->data && dcp_same_shape(w, t))
			return &b->params[i];
	}
	return NULL;
}

/* Note another name of a parameter. */
static int add_tie(struct stage0_builder *b, const char *name, const char *same)
{
	struct dcp_model *const o = b->o;
	struct dcp_param *const p = arena_alloc(&o->arena, sizeof(*p));

	if (!p || !arena_reserve(&o->arena, &o->extras, o->nextras, &b->extras_cap,
				 o->nextras + 1, sizeof(*o->extras)))
		return errmsg_nomem(b->err, b->file);
	p->name = same;
	o->extras[o->nextras++] = (struct dcp_extra){ name, NULL, p };
	return 0;
}

static int add_param(struct stage0_builder *b, const char *name,
		     struct dcp_item *weight)
{
	const struct stage0_param *const same = find_same(b, weight);

	if (same)
		return add_tie(b, name, same->name);
	if (!arena_reserve(&b->o->arena, &b->params, b->nparams, &b->params_cap,
			   b->nparams + 1, sizeof(*b->params)) ||
	    !hashtab_add(&b->places, hash_number(weight->chunks->data),
			 (uint32_t)b->nparams))
		return errmsg_nomem(b->err, b->file);
	b->params[b->nparams++] = (struct stage0_param){ name, weight };
	b->numel += weight->numel;
	return 0;
}

/* What the names of the tied module that a layer is begin with, by those that the model's
 * rules have for such; NULL: it is none. */
static const char *find_tie(struct stage0_builder *b, const struct value_dict *layer)
{
	for (size_t i = 0; i < b->nties; i++) {
		const char *const dot = strchr(b->ties[i] + strlen(TIED), '.');

		for (size_t k = 0; dot && k < layer->n; k++)
			if (value_is_str(layer->v[k].key, dot + 1))
				return arena_strndup(
					&b->o->arena, b->ties[i],
					(size_t)(dot + 1 - b->ties[i]));
	}
	return NULL;
}

static bool is_tied(const char *name)
{
	return strncmp(name, TIED, strlen(TIED)) == 0;
}

/* Collect the patterns that name parameters of tied modules, without their escapes. */
static int list_ties(struct stage0_builder *b)
{
	const struct value_dict *const info =
		value_find_pairs(b->f->pt.root, KEY_UC_INFO);
	struct arena *const a = &b->o->arena;
	size_t cap = 0;

	for (size_t i = 0; info && i < info->n; i++) {
		const struct value_seq *const list = value_items(info->v[i].val);

		for (size_t k = 0; list && k < list->n; k++) {
			const char *from = value_cstr(list->v[k]);
			char *text, *to;

			if (!is_tied(from))
				continue;
			text = to = arena_strdup(a, from);
			if (!text || !arena_reserve(a, &b->ties, b->nties, &cap,
						    b->nties + 1, sizeof(*b->ties)))
				return errmsg_nomem(b->err, b->file);
			for (; *from; from++)
				if (*from != '\\')
					*to++ = *from;
			*to = '\0';
			b->ties[b->nties++] = text;
		}
	}
	return 0;
}

/* Add a parameter of a tied module, unless the stage has it already. */
static int add_tied(struct stage0_builder *b, const char *name,
		    struct dcp_item *weight)
{
	for (size_t i = 0; i < b->nparams; i++)
		if (strcmp(b->params[i].name, name) == 0)
			return 0;
	return add_param(b, name, weight);
}

/* Add the tensors of a dict of names: parameters that are no buffers. */
static int add_tensors(struct stage0_builder *b, const struct stage0_file *f,
		       const struct value_dict *d, const char *prefix)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < d->n; i++) {
		const struct value *const key = d->v[i].key;
		struct dcp_item *const t = arena_alloc(&b->o->arena, sizeof(*t));
		char *name;

		if (!value_is_cstr(key) || !tensor_is(d->v[i].val))
			continue;
		name = arena_alloc(&b->o->arena,
				   strlen(prefix) + key->str.len + 1);
		if (!name || !t)
			return errmsg_nomem(b->err, b->file);
		sprintf(name, "%s%s", prefix, key->str.p);
		if (is_buffer(b, name))
			continue;
		rc = stage0_item(b, f, d->v[i].val, name, t);
		/* The optimizer has none like this: it is frozen. */
		if (rc == -ENOTSUP) {
			rc = 0;
			continue;
		}
		rc = rc ?: (is_tied(name) ? add_tied : add_param)(b, name, t);
	}
	return rc;
}

/* Add the parameters of an open layer. */
static int add_values(struct stage0_builder *b, const struct stage0_file *f)
{
	const struct value_dict *const d = value_pairs(f->pt.root);
	const char *const tie = d ? find_tie(b, d) : NULL;
	char number[16];

	if (!d)
		return errmsg_set(b->err, -EBADMSG, "%s: is no dict", f->path);
	snprintf(number, sizeof(number), "%u.", f->layer);
	return add_tensors(b, f, d, tie ?: number);
}

/* Open a layer, which ptfile_close closes: a pipeline may have thousands, and none stays
 * open. */
static int open_layer(struct stage0_builder *b, struct stage0_file *f)
{
	const int rc = open_file(f, b->b, b->err);

	if (!rc)
		b->o->arena.limit += f->pt.arena.used * STAGE0_MEMORY_PER_BYTE;
	return rc;
}

static int add_layer(struct stage0_builder *b, struct stage0_file *f)
{
	int rc = open_layer(b, f);

	if (rc)
		return rc;
	rc = add_values(b, f);
	ptfile_close(&f->pt);
	return rc;
}

static bool has_all(const struct stage0_builder *b)
{
	return b->flat ? b->numel >= b->flat : b->nparams >= b->nentries;
}

/* Add a stage's layers: those that follow, until they have what the optimizer has.  The
 * last stage has all that are left.  A tied layer may have no file but in an earlier
 * stage. */
static int add_layers(struct stage0_builder *b, size_t part)
{
	struct stage0 *const s = b->s;
	const unsigned rank = (unsigned)part % s->tensor;
	const bool last = part + s->tensor >= s->nparts;
	size_t *const at = &s->next[rank];
	int rc = 0;

	while (!rc && *at < s->nlayers && s->layers[*at].rank == rank &&
	       (last || !has_all(b)))
		rc = add_layer(b, &s->layers[(*at)++]);
	for (size_t i = 0; !rc && !has_all(b) && i < s->nties; i++)
		if (s->ties[i].rank == rank)
			rc = add_tied(b, s->ties[i].name, s->ties[i].weight);
	return rc;
}

/* Tied modules come first in a stage (PipelineModule.__init__).  Note them for later
 * stages. */
static int sort_ties(struct stage0_builder *b, size_t part)
{
	struct stage0 *const s = b->s;
	struct stage0_param *const v =
		arena_alloc(&b->o->arena, (b->nparams + 1) * sizeof(*v));
	size_t n = 0;

	if (!v || !arena_reserve(&s->arena, &s->ties, s->nties, &s->ties_cap,
				 s->nties + b->nparams, sizeof(*s->ties)))
		return errmsg_nomem(b->err, b->file);
	for (int tied = 1; tied >= 0; tied--)
		for (size_t i = 0; i < b->nparams; i++) {
			if (is_tied(b->params[i].name) != tied)
				continue;
			v[n++] = b->params[i];
			if (tied)
				s->ties[s->nties++] = (struct stage0_tie){
					(unsigned)part % s->tensor,
					b->params[i].name, b->params[i].weight
				};
		}
	b->params = v;
	return 0;
}

int stage0_find_params(struct stage0_builder *b, size_t part)
{
	const struct value_dict *module;
	int rc = module_dict(b->f->pt.root, b->file, &b->o->arena, &module, b->err) ?:
		 list_buffers(b);

	if (!rc && module)
		rc = add_tensors(b, b->f, module, "");
	else if (!rc)
		rc = list_ties(b) ?: add_layers(b, part) ?: sort_ties(b, part);
	return rc;
}

/* Add a parameter of a pipeline that is called <layer>.<name>, from the layer's file, which
 * stays open as `*open`. */
static int add_from_layer(struct stage0_builder *b, size_t part,
			  const char *name, struct stage0_file **open)
{
	struct stage0 *const s = b->s;
	struct dcp_item *const t = arena_alloc(&b->o->arena, sizeof(*t));
	struct stage0_file *f, key = { .rank = (unsigned)part % s->tensor };
	const struct value *v;
	char *tail;
	int rc;

	key.layer = (unsigned)strtoul(name, &tail, 10);
	if (tail == name || *tail != '.')
		return ERRMSG_FILE(b, -ENOTSUP,
				   "%s: which layer has a tied module is not recorded,"
				   " and there is no optimizer", name);
	f = bsearch(&key, s->layers, s->nlayers, sizeof(key), by_place);
	if (!f)
		return ERRMSG_FILE(b, -EBADMSG,
				   "%s: the file of its layer is missing", name);
	if (f != *open) {
		if (*open)
			ptfile_close(&(*open)->pt);
		*open = NULL;
		rc = open_layer(b, f);
		if (rc)
			return rc;
		*open = f;
	}
	v = value_find(f->pt.root, tail + 1);
	name = arena_strdup(&b->o->arena, name);
	if (!v || !name || !t)
		return v ? errmsg_nomem(b->err, b->file)
			 : errmsg_set(b->err, -EBADMSG, "%s: lacks %s", f->path,
				      tail + 1);
	return stage0_item(b, f, v, name, t) ?: add_param(b, name, t);
}

int stage0_find_listed(struct stage0_builder *b, size_t part,
		       const struct value_seq *shapes)
{
	struct stage0_file *open = NULL;
	int rc = 0;

	for (size_t g = 0; !rc && g < shapes->n; g++) {
		const struct value_dict *const d = value_pairs(shapes->v[g]);

		for (size_t i = 0; !rc && d && i < d->n; i++)
			rc = add_from_layer(b, part, value_cstr(d->v[i].key),
					    &open);
	}
	if (open)
		ptfile_close(&open->pt);
	return rc;
}
