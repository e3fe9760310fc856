/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MoE layers, as DeepSpeed records them (runtime/engine.py
 * _save_moe_checkpoint):
 *
 *   num_experts		of each MoE layer, in the order of the model
 *   ds_autoep_layers	a dict for each layer that AutoEP made, or None
 *			(checkpoint/autoep_affine.py):
 *     moe_layer_id, expert_key_prefix, num_experts, num_local_experts, ep_size,
 *     ep_rank
 *     expert_placement	{version: 1, num_experts, ep_size, ranks:
 *			[{rank, experts: [...]}]}, since 2026
 *     affine_maps	{version: 1, params: {name: map}}: where each parameter's experts are, piece
 *			by piece (geometry_affine.c)
 *   ds_config.use_data_before_expert_parallelism
 *
 * For native layers nothing else is recorded; the rest follows from the names of
 * their expert files and the keys in them.
 */
#include "ckpt/table/experts.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"

#define NATIVE_MARK ".deepspeed_moe.experts.deepspeed_experts."

#define PLACEMENT_VERSION 1
#define MAPS_VERSION 1
#define ZERO3_FORMAT "zero3_partitioned"
#define ZERO3_FORMAT_VERSION 1

const char *const experts_fused[EXPERTS_FUSED] = { ".w1", ".w2", ".w3" };

struct expert_place experts_place(const struct expert_layer *l, unsigned expert)
{
	/* For an untrained layer the number of experts per rank is unknown. */
	const unsigned local = l->local ?: l->n;

	return l->places ? l->places[expert]
			 : (struct expert_place){ expert / local, expert % local };
}

static bool is_at(const struct expert_layer *l, unsigned expert, struct expert_place at)
{
	const struct expert_place own = experts_place(l, expert);

	return own.rank == at.rank && own.index == at.index;
}

unsigned experts_number(const struct expert_layer *l, unsigned rank, unsigned index)
{
	const unsigned at = rank * l->local + index;

	return l->numbers ? l->numbers[at] : at;
}

struct reader {
	struct experts *x;
	struct arena *a;
	bool zero3;
	const char *file;
	size_t i; /* index of the entry in ds_autoep_layers */
	/* Numbers up to this entry, which a pickle may repeat without growing: of experts on all
	 * ranks, of affine maps, and of what these made the loader look at. */
	unsigned placed, maps;
	uint64_t work;
	struct errmsg *err;
};

#define MAPS_MAX 16384u
#define MAPS_WORK_MAX ((uint64_t)1 << 24)

#define AUTOEP_FAIL(r, rc, fmt, ...) \
	ERRMSG_FILE(r, rc, "ds_autoep_layers[%zu]: " fmt, (r)->i, ##__VA_ARGS__)

/* Read a number from `least` to `most`. */
static int read_number(const struct reader *r, const struct value *entry, const char *key,
		       unsigned least, unsigned most, unsigned *out)
{
	int64_t i;

	if (!value_get_int(value_find(entry, key), &i) || i < least || i > most)
		return AUTOEP_FAIL(r, -EBADMSG, "%s is missing or not from %u to %u", key, least,
				   most);
	*out = (unsigned)i;
	return 0;
}

static int expect(const struct reader *r, const struct value *entry, const char *key,
		  unsigned expected)
{
	unsigned n;

	return read_number(r, entry, key, expected, expected, &n);
}

/* An expert that several ranks have is read from the first of them. */
static int set_place(const struct reader *r, const struct expert_layer *l,
		     struct expert_place *places, unsigned *last, const struct value *expert,
		     unsigned rank, unsigned index)
{
	uint64_t e;

	if (!value_get_count(expert, &e) || e >= l->n || last[e] == rank + 1)
		return AUTOEP_FAIL(r, -EBADMSG,
				"expert_placement names an expert that is not there, or one twice");
	if (!last[e] || rank < places[e].rank)
		places[e] = (struct expert_place){ rank, index };
	last[e] = rank + 1;
	l->numbers[rank * l->local + index] = (unsigned)e;
	return 0;
}

/* Check that each rank has `local` experts, none of them twice, and that all are placed. */
static int read_ranks(const struct reader *r, const struct expert_layer *l,
		      const struct value_seq *ranks, struct expert_place *places)
{
	bool *seen = arena_alloc(r->a, ranks->n + 1);
	unsigned *last = arena_alloc(r->a, l->n * sizeof(*last)); /* rank that has it, and 1 */
	int rc = seen && last ? 0 : errmsg_nomem(r->err, r->file);

	for (size_t i = 0; !rc && i < ranks->n; i++) {
		const struct value_seq *own = value_find_items(ranks->v[i], "experts");
		unsigned rank;

		rc = read_number(r, ranks->v[i], "rank", 0, (unsigned)ranks->n - 1, &rank);
		if (rc)
			break;
		if (seen[rank] || !own)
			return AUTOEP_FAIL(r, -EBADMSG,
					   "expert_placement has a rank without experts, or twice");
		seen[rank] = true;
		if (own->n != l->local)
			return AUTOEP_FAIL(r, -ENOTSUP,
				"ranks that hold different numbers of experts are not supported");
		for (unsigned k = 0; !rc && k < l->local; k++)
			rc = set_place(r, l, places, last, own->v[k], rank, k);
	}
	for (unsigned e = 0; !rc && e < l->n; e++)
		if (!last[e])
			rc = AUTOEP_FAIL(r, -EBADMSG, "expert_placement leaves out expert %u", e);
	return rc;
}

static int read_placement(const struct reader *r, struct expert_layer *l, const struct value *v)
{
	const struct value_seq *ranks = value_find_items(v, "ranks");
	struct expert_place *places;
	int rc;

	if (!v || v->kind == VALUE_NONE)
		return (uint64_t)l->degree * l->local == l->n
			       ? 0
			       : AUTOEP_FAIL(r, -EBADMSG,
				"%u experts on each of %u ranks (ep_size) are not %u, and there is no expert_placement",
					     l->local, l->degree, l->n);
	rc = expect(r, v, "version", PLACEMENT_VERSION) ?:
	     expect(r, v, "num_experts", l->n) ?:
	     expect(r, v, "ep_size", l->degree);
	if (rc)
		return rc;
	if (!ranks || ranks->n != l->degree)
		return AUTOEP_FAIL(r, -EBADMSG, "expert_placement does not list the ranks");
	l->places = places = arena_alloc(r->a, l->n * sizeof(*places));
	l->numbers = arena_alloc(r->a, l->degree * l->local * sizeof(*l->numbers));
	if (!places || !l->numbers)
		return errmsg_nomem(r->err, r->file);
	return read_ranks(r, l, ranks, places);
}

/* Compare where an affine map and where the layer place a parameter's experts, and count the ranks
 * that have the same, and the work. */
static int compare_map(struct param *p, bool *same, uint32_t *sum, uint64_t *work,
		       struct errmsg *why)
{
	struct param plain = *p;
	struct geometry g, own;
	int rc = geometry_init(&g, p, why);

	if (rc)
		return rc;
	p->replicas = g.replicas;
	*work += g.work;
	plain.merge.spec = NULL;
	rc = geometry_init(&own, &plain, why);
	if (!rc) {
		*same = g.rows == own.rows && g.nsegs == own.nsegs &&
			!memcmp(g.segs, own.segs, g.nsegs * sizeof(*g.segs));
		geometry_done(&own);
	}
	*sum = crc32_add(*sum, g.segs, g.nsegs * sizeof(*g.segs));
	*sum = crc32_add(*sum, g.stride, g.nsources * sizeof(*g.stride));
	*sum = crc32_add(*sum, g.scales, g.nscales * sizeof(*g.scales));
	geometry_done(&g);
	return rc;
}

/* Read the affine map of a parameter.  It is kept if the layer does not imply it, and for replicas to
 * be compared. */
static int read_map(struct reader *r, struct expert_layer *l, const struct slice **slices,
		    struct slice *own, const struct value_pair *map)
{
	struct param p = { .name = value_cstr(map->key),
			   .slices = slices,
			   .nslices = l->degree,
			   .first = own,
			   .merge = { .rule = MERGE_EXPERTS, .experts = l, .spec = map->val } };
	struct errmsg why = { "" };
	struct tensor t;
	bool same = false;
	int rc = tensor_set_shape(&t, value_find(map->val, "logical_shape"), NULL);

	if (rc || !t.numel || !t.ndim || t.shape[0] != l->n)
		return AUTOEP_FAIL(r, -EBADMSG, "affine_maps: %s: is not of %u experts", p.name, l->n);
	/* A rank has `local` of the experts, in the shape that they have in the whole. */
	t.shape[0] = l->local;
	*own = (struct slice){ .ndim = t.ndim, .shape = t.shape, .numel = t.numel / l->n * l->local };
	rc = compare_map(&p, &same, &l->maps_sum, &r->work, &why);
	if (rc)
		return AUTOEP_FAIL(r, rc, "affine_maps: %s", why.text);
	if (r->work > MAPS_WORK_MAX)
		return AUTOEP_FAIL(r, -E2BIG,
			"affine_maps: those of all layers have more than %llu pieces, runs and locations",
				   (unsigned long long)MAPS_WORK_MAX);
	if (same && p.replicas == 1)
		return 0;
	if (!same && l->places)
		return AUTOEP_FAIL(r, -EBADMSG,
			"affine_maps place the experts of %s elsewhere than expert_placement does",
				   p.name);
	if (!l->maps)
		l->maps = value_new(r->a, VALUE_DICT);
	return value_put(r->a, l->maps, map->key, map->val) ? 0 : errmsg_nomem(r->err, r->file);
}

static int read_maps(struct reader *r, struct expert_layer *l, const struct value *entry)
{
	const struct value *all = value_find(entry, "affine_maps");
	const struct value_dict *maps = value_find_pairs(all, "params");
	const struct slice **slices; /* of all ranks: `own`, with the shape of each parameter in turn */
	struct slice own;
	int rc = value_find(all, "version") ? expect(r, all, "version", MAPS_VERSION) : 0;

	if (rc || !maps)
		return rc;
	if (maps->n > MAPS_MAX - r->maps)
		return AUTOEP_FAIL(r, -E2BIG, "affine_maps: more than %u in all layers", MAPS_MAX);
	r->maps += (unsigned)maps->n;
	slices = arena_alloc(r->a, l->degree * sizeof(*slices));
	if (!slices)
		return errmsg_nomem(r->err, r->file);
	for (unsigned i = 0; i < l->degree; i++)
		slices[i] = &own;
	for (size_t i = 0; !rc && i < maps->n; i++)
		rc = read_map(r, l, slices, &own, &maps->v[i]);
	return rc;
}

/* Check that the storage format of the experts' tensors is that of the ZeRO
 * stage. */
static int check_format(const struct reader *r, const struct value *entry)
{
	if (r->zero3 != value_is_str(value_find(entry, "checkpoint_format"), ZERO3_FORMAT))
		return AUTOEP_FAIL(r, -ENOTSUP,
				   "checkpoint_format is not the one of this ZeRO stage");
	return r->zero3 ? expect(r, entry, "checkpoint_format_version", ZERO3_FORMAT_VERSION) : 0;
}

static int read_layer(struct reader *r, const struct value *entry)
{
	const struct value *prefix = value_find(entry, "expert_key_prefix");
	struct expert_layer *l;
	unsigned id;
	int rc = read_number(r, entry, "moe_layer_id", 0, (unsigned)r->x->n - 1, &id);

	if (rc)
		return rc;
	l = &r->x->layers[id];
	if (l->fused)
		return AUTOEP_FAIL(r, -EBADMSG, "is of the same layer as another");
	l->fused = true;
	if (!value_get_int(value_find(entry, "ep_rank"), &l->ep))
		l->ep = -1;
	rc = expect(r, entry, "num_experts", l->n) ?:
	     read_number(r, entry, "num_local_experts", 1, l->n, &l->local) ?:
	     read_number(r, entry, "ep_size", 1, EXPERTS_MAX, &l->degree) ?:
	     check_format(r, entry);
	if (rc)
		return rc;
	if ((uint64_t)l->degree * l->local > EXPERTS_MAX - r->placed)
		return AUTOEP_FAIL(r, -E2BIG, "more than %u experts on the ranks of all layers",
				   EXPERTS_MAX);
	r->placed += l->degree * l->local;
	if (!value_is_cstr(prefix) || !prefix->str.len || prefix->str.len > EXPERT_NAME_MAX / 2)
		return AUTOEP_FAIL(r, -EBADMSG, "expert_key_prefix is no name");
	l->prefix = arena_strdup(r->a, prefix->str.p);
	if (!l->prefix)
		return errmsg_nomem(r->err, r->file);
	return read_placement(r, l, value_find(entry, "expert_placement"))
		       ?: read_maps(r, l, entry);
}

/* AutoEP with tensor parallelism: experts are spread over tensor-parallel ranks and not cut. */
static int check_folding(const struct reader *r, const struct value *root)
{
	const struct value *folding = value_find(root, KEY_FOLDING);
	int64_t version, cut;

	if (!folding || (value_get_int(value_find(folding, "version"), &version) && version == 1 &&
			 value_get_int(value_find(folding, "etp_size"), &cut) && cut == 1))
		return 0;
	return ERRMSG_FILE(r, -ENOTSUP,
			   "folding: is not of version 1, or tensor parallelism cuts experts");
}

static int read_counts(const struct reader *r, const struct value_seq *counts)
{
	struct experts *x = r->x;
	unsigned total = 0;

	if (counts->n > EXPERTS_LAYERS_MAX)
		return ERRMSG_FILE(r, -E2BIG, "%zu MoE layers", counts->n);
	x->n = counts->n;
	x->layers = arena_alloc(r->a, (x->n + 1) * sizeof(*x->layers));
	if (!x->layers)
		return errmsg_nomem(r->err, r->file);
	for (size_t i = 0; i < x->n; i++) {
		int64_t n;

		if (!value_get_int(counts->v[i], &n) || n < 1)
			return ERRMSG_FILE(r, -EBADMSG,
					   "num_experts[%zu] is not a number of experts",
					   i);
		if (n > (int64_t)(EXPERTS_MAX - total))
			return ERRMSG_FILE(r, -E2BIG, "more than %u experts", EXPERTS_MAX);
		x->layers[i].n = (unsigned)n;
		total += (unsigned)n;
	}
	return 0;
}

/* Copy the maps that are kept, of all layers at once: then what they share is copied once. */
static int copy_maps(const struct reader *r)
{
	struct value *all = value_new(r->a, VALUE_LIST), *copy;
	struct expert_layer *l = r->x->layers;
	size_t n = 0;
	bool ok = all;

	for (size_t i = 0; ok && i < r->x->n; i++)
		if (l[i].maps)
			ok = value_append(r->a, all, l[i].maps);
	copy = ok && value_items(all)->n ? pickle_copy(r->a, all) : NULL;
	if (!copy)
		return ok && !value_items(all)->n ? 0 : errmsg_nomem(r->err, r->file);
	for (size_t i = 0; i < r->x->n; i++)
		if (l[i].maps)
			l[i].maps = value_item(copy, n++);
	return 0;
}

int experts_init(struct experts *x, struct arena *a, const struct value *root, bool zero3,
		 const char *file, struct errmsg *err)
{
	const struct value_seq *counts = value_find_items(root, "num_experts");
	const struct value *list = value_find(root, "ds_autoep_layers");
	struct reader r = { .x = x, .a = a, .zero3 = zero3, .file = file, .err = err };
	int rc = 0;

	*x = (struct experts){ .data_first = value_is_true(value_find_path(
				       root, KEY_DS_CONFIG, "use_data_before_expert_parallelism",
				       NULL)) };
	if (counts)
		rc = read_counts(&r, counts);
	if (!list)
		list = value_find(root, "autoep_layers"); /* the key in older
							   * files */
	if (rc || !list || list->kind == VALUE_NONE)
		return rc;
	if (!value_items(list) || !x->n)
		return ERRMSG_FILE(&r, -EBADMSG,
				   "ds_autoep_layers is a %s, num_experts counts %zu layers",
				   value_kind_name(list), x->n);
	rc = check_folding(&r, root);
	for (; !rc && r.i < value_items(list)->n; r.i++)
		rc = read_layer(&r, value_item(list, r.i));
	return rc ?: copy_maps(&r);
}

unsigned experts_degree(const struct expert_layer *l)
{
	assert(l->degree || !l->local || l->n % l->local == 0);
	return l->degree ?: l->local ? l->n / l->local : 1;
}

static bool layers_equal(const struct expert_layer *a, const struct expert_layer *b)
{
	if (a->n != b->n || a->fused != b->fused)
		return false;
	if (!a->fused)
		return true;
	for (unsigned e = 0; e < a->n; e++)
		if (!is_at(a, e, experts_place(b, e)))
			return false;
	return a->local == b->local && a->degree == b->degree && a->maps_sum == b->maps_sum &&
	       strcmp(a->prefix, b->prefix) == 0;
}

bool experts_equal(const struct experts *a, const struct experts *b)
{
	bool equal = a->n == b->n && a->data_first == b->data_first;

	for (size_t i = 0; equal && i < a->n; i++)
		equal = layers_equal(&a->layers[i], &b->layers[i]);
	return equal;
}

/* Skip the decimal number at `*s`, which has no leading zeros. */
static bool skip_number(const char **s, unsigned *out)
{
	const char *begin = *s;
	unsigned v = 0;

	for (; isdigit((unsigned char)**s); (*s)++) {
		v = v * 10 + (unsigned)(**s - '0');
		if (v >= EXPERTS_MAX)
			return false;
	}
	*out = v;
	return *s > begin && (*begin != '0' || *s == begin + 1);
}

bool experts_is_native(const char *name)
{
	return strstr(name, NATIVE_MARK) != NULL;
}

bool experts_parse(const struct expert_layer *l, const char *name, unsigned *expert,
		   const char **rest)
{
	const size_t n = strlen(l->prefix);

	if (strncmp(name, l->prefix, n) != 0 || strlen(name) >= EXPERT_NAME_MAX - 16)
		return false;
	*rest = name + n;
	*expert = 0;
	for (size_t i = 0; l->fused && i < EXPERTS_FUSED; i++)
		if (strcmp(*rest, experts_fused[i]) == 0)
			return true;
	return !l->fused && skip_number(rest, expert) && **rest == '.';
}

void experts_key(const struct expert_layer *l, unsigned expert, const char *rest, char *out)
{
	if (l->fused)
		snprintf(out, EXPERT_NAME_MAX, "%s%s.%u", l->prefix, rest, expert);
	else
		snprintf(out, EXPERT_NAME_MAX, "%s%u%s", l->prefix, expert, rest);
}

size_t experts_prefix_len(const char *key, unsigned expert)
{
	const char *end = NULL, *s = key;
	unsigned number;

	/* The last mark counts: an expert may itself be a model with
	 * experts. */
	while ((s = strstr(s, NATIVE_MARK))) {
		s += strlen(NATIVE_MARK);
		end = s;
	}
	s = end;
	return end && strlen(key) < EXPERT_NAME_MAX - 16 && skip_number(&s, &number) &&
			       number == expert && *s == '.'
		       ? (size_t)(end - key)
		       : 0;
}
