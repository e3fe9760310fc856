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
 *     affine_maps	the same for each parameter, as pieces
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
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"

#define NATIVE_MARK ".deepspeed_moe.experts.deepspeed_experts."

#define PLACEMENT_VERSION 1
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
	unsigned e = 0;

	if (!l->places)
		return rank * l->local + index;
	while (e + 1 < l->n && !is_at(l, e, (struct expert_place){ rank, index }))
		e++;
	return e;
}

struct reader {
	struct experts *x;
	struct arena *a;
	bool zero3;
	const char *file;
	size_t i; /* index of the entry in ds_autoep_layers */
	struct errmsg *err;
};

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

static int set_place(const struct reader *r, const struct expert_layer *l,
		     struct expert_place *places, bool *placed, const struct value *expert,
		     unsigned rank, unsigned index)
{
	uint64_t e;

	if (!value_get_count(expert, &e) || e >= l->n || placed[e])
		return AUTOEP_FAIL(r, -EBADMSG,
				"expert_placement names an expert that is not there, or one twice");
	placed[e] = true;
	places[e] = (struct expert_place){ rank, index };
	return 0;
}

/* Check that each rank has `local` experts and that no expert occurs twice, which implies that
 * all are placed. */
static int read_ranks(const struct reader *r, const struct expert_layer *l,
		      const struct value_seq *ranks, struct expert_place *places)
{
	bool *seen = arena_alloc(r->a, ranks->n + 1);
	bool *placed = arena_alloc(r->a, l->n);
	int rc = seen && placed ? 0 : errmsg_nomem(r->err, r->file);

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
			rc = set_place(r, l, places, placed, own->v[k], rank, k);
	}
	return rc;
}

static int read_placement(const struct reader *r, struct expert_layer *l, const struct value *v)
{
	const struct value_seq *ranks = value_find_items(v, "ranks");
	struct expert_place *places;
	int rc;

	if (!v || v->kind == VALUE_NONE)
		return 0;
	l->places = places = arena_alloc(r->a, l->n * sizeof(*places));
	if (!places)
		return errmsg_nomem(r->err, r->file);
	rc = expect(r, v, "version", PLACEMENT_VERSION) ?:
	     expect(r, v, "num_experts", l->n) ?:
	     expect(r, v, "ep_size", experts_degree(l));
	if (rc)
		return rc;
	if (!ranks || ranks->n != experts_degree(l))
		return AUTOEP_FAIL(r, -EBADMSG, "expert_placement does not list the ranks");
	return read_ranks(r, l, ranks, places);
}

/* Read the offset of a place, [offset, strides], whose elements are in row-major order. */
static bool get_offset(const struct value *piece, const char *key, const struct value_seq *shape,
		       uint64_t *offset)
{
	const struct value_seq *place = value_find_items(piece, key);
	const struct value_seq *strides = place && place->n == 2 ? value_items(place->v[1]) : NULL;
	uint64_t stride, dim, len = 1;

	if (!strides || strides->n != shape->n || !value_get_count(place->v[0], offset))
		return false;
	for (size_t i = shape->n; i-- > 0; len *= dim)
		if (!value_get_count(strides->v[i], &stride) || stride != len ||
		    !value_get_count(shape->v[i], &dim))
			return false;
	return true;
}

/* Does the piece {shape, source: [offset, strides], dest: [offset, strides]} place whole experts,
 * unchanged, where the layer has them? */
static bool piece_agrees(const struct expert_layer *l, unsigned rank, const struct value *piece,
			 bool *seen)
{
	const struct value_seq *shape = value_find_items(piece, "shape");
	uint64_t n, from, to, dim, len = 1;

	if (!shape || !shape->n || value_find(piece, "scale") || !value_get_count(shape->v[0], &n))
		return false;
	for (size_t i = 1; i < shape->n; i++)
		if (!value_get_count(shape->v[i], &dim) || !dim || !checked_mul(len, dim, &len))
			return false;
	if (!get_offset(piece, "source", shape, &from) || !get_offset(piece, "dest", shape, &to) ||
	    from % len || to % len)
		return false;
	from /= len;
	to /= len;
	for (uint64_t k = 0; k < n; k++) {
		const struct expert_place at = { rank, (unsigned)(to + k) };

		if (from + k >= l->n || to + k >= l->n || seen[from + k] ||
		    !is_at(l, (unsigned)(from + k), at))
			return false;
		seen[from + k] = true;
	}
	return true;
}

static bool map_agrees(const struct expert_layer *l, const struct value *map, bool *seen)
{
	const struct value_dict *ranks = value_find_pairs(map, "ranks");
	uint64_t rank;

	memset(seen, 0, l->n);
	for (size_t i = 0; ranks && i < ranks->n; i++) {
		const struct value_seq *pieces = value_find_items(ranks->v[i].val, "pieces");

		if (!pieces || !value_get_count(ranks->v[i].key, &rank) || rank >= experts_degree(l))
			return false;
		for (size_t k = 0; k < pieces->n; k++)
			if (!piece_agrees(l, (unsigned)rank, pieces->v[k], seen))
				return false;
	}
	return ranks && !memchr(seen, 0, l->n);
}

static int check_maps(const struct reader *r, const struct expert_layer *l,
		      const struct value *entry)
{
	const struct value_dict *maps = value_find_pairs(value_find(entry, "affine_maps"), "params");
	bool *seen = arena_alloc(r->a, l->n);

	if (!seen)
		return errmsg_nomem(r->err, r->file);
	for (size_t i = 0; maps && i < maps->n; i++)
		if (!map_agrees(l, maps->v[i].val, seen))
			return AUTOEP_FAIL(r, -ENOTSUP,
				"affine_maps place the experts of %s elsewhere than expert_placement does, or not as they are, which is not supported",
					   value_cstr(maps->v[i].key));
	return 0;
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

static int read_layer(const struct reader *r, const struct value *entry)
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
	     expect(r, entry, "ep_size", l->n / l->local) ?:
	     check_format(r, entry);
	if (rc)
		return rc;
	if (l->n % l->local)
		return AUTOEP_FAIL(r, -EBADMSG, "num_local_experts does not divide num_experts");
	if (!value_is_cstr(prefix) || !prefix->str.len || prefix->str.len > EXPERT_NAME_MAX / 2)
		return AUTOEP_FAIL(r, -EBADMSG, "expert_key_prefix is no name");
	l->prefix = arena_strdup(r->a, prefix->str.p);
	if (!l->prefix)
		return errmsg_nomem(r->err, r->file);
	return read_placement(r, l, value_find(entry, "expert_placement"))
		       ?: check_maps(r, l, entry);
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
	return rc;
}

unsigned experts_degree(const struct expert_layer *l)
{
	assert(!l->local || l->n % l->local == 0);
	return l->local ? l->n / l->local : 1;
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
	return a->local == b->local && strcmp(a->prefix, b->prefix) == 0;
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
