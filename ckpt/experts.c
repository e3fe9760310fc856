/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MoE layers, as DeepSpeed records them (runtime/engine.py
 * _save_moe_checkpoint, checkpoint/autoep_affine.py):
 *
 *   num_experts		of each MoE layer, in the order of the model
 *   ds_autoep_layers	a dict for each layer that AutoEP made, or None
 *     moe_layer_id, expert_key_prefix, num_experts, num_local_experts,
 *     ep_size, ep_rank
 *     expert_placement	{version: 1, num_experts, ep_size, ranks:
 *			 [{rank, experts: [...]}]}, since 2026
 *   ds_config.use_data_before_expert_parallelism
 *
 * Of native layers nothing else is recorded; what there is to know is in the
 * names of their expert files and in the keys in them.
 */
#include "ckpt/experts.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/arena.h"
#include "ckpt/errmsg.h"
#include "ckpt/names.h"
#include "ckpt/value.h"

#define NATIVE_MARK ".deepspeed_moe.experts.deepspeed_experts."
#define PLACEMENT_VERSION 1
#define ZERO3_FORMAT "zero3_partitioned"
#define ZERO3_FORMAT_VERSION 1

struct reader {
	struct experts *x;
	struct arena *a;
	const char *file;
	size_t i; /* of the entry in ds_autoep_layers */
	struct errmsg *err;
};

static int fail(const struct reader *r, int rc, const char *what)
{
	return errmsg_set(r->err, rc, "%s: ds_autoep_layers[%zu]: %s", r->file,
			  r->i, what);
}

/* --- AutoEP ------------------------------------------------------------------ */

/* A number from `least` to `most`. */
static int read_number(const struct reader *r, const struct value *entry,
		       const char *key, unsigned least, unsigned most,
		       unsigned *out)
{
	int64_t i;

	if (!value_get_int(value_find(entry, key), &i) || i < least || i > most)
		return errmsg_set(r->err, -EBADMSG,
				  "%s: ds_autoep_layers[%zu]: %s is missing or"
				  " not from %u to %u",
				  r->file, r->i, key, least, most);
	*out = (unsigned)i;
	return 0;
}

static int set_place(const struct reader *r, const struct expert_layer *l,
		     struct expert_place *places, bool *placed,
		     const struct value *expert, unsigned rank, unsigned index)
{
	int64_t e;

	if (!value_get_int(expert, &e) || e < 0 || e >= l->n || placed[e])
		return fail(r, -EBADMSG,
			    "expert_placement names an expert that"
			    " is not there, or one twice");
	placed[e] = true;
	places[e] = (struct expert_place){ rank, index };
	return 0;
}

/* Each of the ranks has `local` experts, and no expert is there twice: then
 * all are there. */
static int read_ranks(const struct reader *r, const struct expert_layer *l,
		      const struct value_seq *ranks, struct expert_place *places)
{
	bool *const seen = arena_alloc(r->a, ranks->n + 1);
	bool *const placed = arena_alloc(r->a, l->n);
	int rc = seen && placed ? 0 : fail(r, -ENOMEM, "out of memory");

	for (size_t i = 0; !rc && i < ranks->n; i++) {
		const struct value_seq *const own =
			value_items(value_find(ranks->v[i], "experts"));
		unsigned rank;

		rc = read_number(r, ranks->v[i], "rank", 0,
				 (unsigned)ranks->n - 1, &rank);
		if (rc)
			break;
		if (seen[rank] || !own)
			return fail(r, -EBADMSG,
				    "expert_placement has a rank"
				    " without experts, or twice");
		seen[rank] = true;
		if (own->n != l->local)
			return fail(r, -ENOTSUP,
				    "ranks that hold different"
				    " numbers of experts are not"
				    " supported");
		for (unsigned k = 0; !rc && k < l->local; k++)
			rc = set_place(r, l, places, placed, own->v[k], rank, k);
	}
	return rc;
}

static int read_placement(const struct reader *r, struct expert_layer *l,
			  const struct value *v)
{
	struct expert_place *const places =
		arena_alloc(r->a, l->n * sizeof(*places));
	const struct value_seq *const ranks =
		value_items(value_find(v, "ranks"));
	unsigned version, n, degree;
	int rc;

	if (!places)
		return fail(r, -ENOMEM, "out of memory");
	l->places = places;
	if (!v || v->kind == VALUE_NONE) {
		/* Before there were placements: one rank after the other. */
		for (unsigned e = 0; e < l->n; e++)
			places[e] = (struct expert_place){ e / l->local,
							   e % l->local };
		return 0;
	}
	rc = read_number(r, v, "version", PLACEMENT_VERSION, PLACEMENT_VERSION,
			 &version);
	if (!rc)
		rc = read_number(r, v, "num_experts", l->n, l->n, &n);
	if (!rc)
		rc = read_number(r, v, "ep_size", experts_degree(l),
				 experts_degree(l), &degree);
	if (rc)
		return rc;
	if (!ranks || ranks->n != experts_degree(l))
		return fail(r, -EBADMSG,
			    "expert_placement does not list the"
			    " ranks");
	return read_ranks(r, l, ranks, places);
}

/* How the experts' tensors are stored must be what the stage calls for. */
static int check_format(const struct reader *r, const struct value *entry,
			bool zero3)
{
	unsigned version;

	if (zero3 !=
	    value_is_str(value_find(entry, "checkpoint_format"), ZERO3_FORMAT))
		return fail(r, -ENOTSUP,
			    "checkpoint_format is not the one of"
			    " this ZeRO stage");
	return zero3 ? read_number(r, entry, "checkpoint_format_version",
				   ZERO3_FORMAT_VERSION, ZERO3_FORMAT_VERSION,
				   &version)
		     : 0;
}

static int read_layer(const struct reader *r, const struct value *entry,
		      bool zero3)
{
	const struct value *const prefix =
		value_find(entry, "expert_key_prefix");
	struct expert_layer *l;
	unsigned id, degree;
	int rc = read_number(r, entry, "moe_layer_id", 0, (unsigned)r->x->n - 1,
			     &id);

	if (rc)
		return rc;
	l = &r->x->layers[id];
	if (l->fused)
		return fail(r, -EBADMSG, "is of the same layer as another");
	l->fused = true;
	if (!value_get_int(value_find(entry, "ep_rank"), &l->ep))
		l->ep = -1;
	rc = read_number(r, entry, "num_experts", l->n, l->n, &l->n);
	if (!rc)
		rc = read_number(r, entry, "num_local_experts", 1, l->n,
				 &l->local);
	if (!rc)
		rc = read_number(r, entry, "ep_size", l->n / l->local,
				 l->n / l->local, &degree);
	if (!rc)
		rc = check_format(r, entry, zero3);
	if (rc)
		return rc;
	if (l->n % l->local)
		return fail(r, -EBADMSG,
			    "num_local_experts does not divide"
			    " num_experts");
	if (!value_is_cstr(prefix) || !prefix->str.len ||
	    prefix->str.len > EXPERT_NAME_MAX / 2)
		return fail(r, -EBADMSG, "expert_key_prefix is no name");
	l->prefix = arena_strndup(r->a, prefix->str.p, prefix->str.len);
	if (!l->prefix)
		return fail(r, -ENOMEM, "out of memory");
	return read_placement(r, l, value_find(entry, "expert_placement"));
}

/* --- all layers -------------------------------------------------------------- */

static int read_counts(struct experts *x, struct arena *a,
		       const struct value_seq *counts, const char *file,
		       struct errmsg *err)
{
	if (counts->n > EXPERTS_LAYERS_MAX)
		return errmsg_set(err, -E2BIG, "%s: %zu MoE layers", file,
				  counts->n);
	x->n = counts->n;
	x->layers = arena_alloc(a, (x->n + 1) * sizeof(*x->layers));
	if (!x->layers)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", file);
	for (size_t i = 0; i < x->n; i++) {
		int64_t n;

		if (!value_get_int(counts->v[i], &n) || n < 1 || n > EXPERTS_MAX)
			return errmsg_set(err, -EBADMSG,
					  "%s: num_experts[%zu] is no number of"
					  " experts",
					  file, i);
		x->layers[i].n = (unsigned)n;
	}
	return 0;
}

int experts_init(struct experts *x, struct arena *a, const struct value *root,
		 bool zero3, const char *file, struct errmsg *err)
{
	const struct value_seq *const counts =
		value_items(value_find(root, "num_experts"));
	const struct value *const first =
		value_find_path(root, KEY_DS_CONFIG,
				"use_data_before_expert_parallelism", NULL);
	const struct value *list = value_find(root, "ds_autoep_layers");
	struct reader r = { .x = x, .a = a, .file = file, .err = err };
	int rc = 0;

	*x = (struct experts){ .data_first = first && first->kind == VALUE_BOOL &&
					     first->b };
	if (counts)
		rc = read_counts(x, a, counts, file, err);
	if (!list)
		list = value_find(root, "autoep_layers"); /* its first name */
	if (rc || !list || list->kind == VALUE_NONE)
		return rc;
	if (!value_items(list) || !x->n)
		return errmsg_set(err, -EBADMSG,
				  "%s: ds_autoep_layers is a %s, num_experts"
				  " counts %zu layers",
				  file, value_kind_name(list), x->n);
	for (; !rc && r.i < value_items(list)->n; r.i++)
		rc = read_layer(&r, value_items(list)->v[r.i], zero3);
	return rc;
}

static bool layers_equal(const struct expert_layer *a,
			 const struct expert_layer *b)
{
	if (a->n != b->n || a->fused != b->fused)
		return false;
	return !a->fused ||
	       (a->local == b->local && strcmp(a->prefix, b->prefix) == 0 &&
		memcmp(a->places, b->places, a->n * sizeof(*a->places)) == 0);
}

bool experts_equal(const struct experts *a, const struct experts *b)
{
	bool equal = a->n == b->n && a->data_first == b->data_first;

	for (size_t i = 0; equal && i < a->n; i++)
		equal = layers_equal(&a->layers[i], &b->layers[i]);
	return equal;
}

unsigned experts_degree(const struct expert_layer *l)
{
	return l->local ? l->n / l->local : 1;
}

/* --- names ------------------------------------------------------------------- */

/* The number at `*s`, which is one as it would be printed. */
static bool skip_number(const char **s, unsigned *out)
{
	const char *const begin = *s;
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

bool experts_parse(const struct expert_layer *l, const char *name,
		   unsigned *expert, const char **rest)
{
	const size_t n = strlen(l->prefix);

	if (strncmp(name, l->prefix, n) != 0 ||
	    strlen(name) >= EXPERT_NAME_MAX - 16)
		return false;
	*rest = name + n;
	*expert = 0;
	if (l->fused)
		return strcmp(*rest, ".w1") == 0 || strcmp(*rest, ".w2") == 0 ||
		       strcmp(*rest, ".w3") == 0;
	return skip_number(rest, expert) && **rest == '.';
}

void experts_key(const struct expert_layer *l, unsigned expert,
		 const char *rest, char *out)
{
	if (l->fused)
		snprintf(out, EXPERT_NAME_MAX, "%s%s.%u", l->prefix, rest,
			 expert);
	else
		snprintf(out, EXPERT_NAME_MAX, "%s%u%s", l->prefix, expert,
			 rest);
}

const char *experts_find_prefix(struct arena *a, const char *key,
				unsigned expert, bool *nomem)
{
	const char *end = NULL, *s = key;
	const char *prefix;
	unsigned number;

	*nomem = false;
	/* The last mark counts: experts may be models with experts. */
	while ((s = strstr(s, NATIVE_MARK))) {
		s += strlen(NATIVE_MARK);
		end = s;
	}
	if (!end || strlen(key) >= EXPERT_NAME_MAX - 16)
		return NULL;
	s = end;
	if (!skip_number(&s, &number) || number != expert || *s != '.')
		return NULL;
	prefix = arena_strndup(a, key, (size_t)(end - key));
	*nomem = !prefix;
	return prefix;
}
