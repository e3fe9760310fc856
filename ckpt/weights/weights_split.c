/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits weights into several files as huggingface_hub does
 * (serialization/_base.py, split_state_dict_into_shards_factory), and writes
 * the index of these files as Python's json.dumps(indent=2, sort_keys=True)
 * prints it.
 *
 * A tensor larger than the limit gets a file of its own, which is numbered
 * before the file that is being filled: a file gets its number when it is
 * complete.
 */
#include "ckpt/weights/weights_split.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"

/* --- the rule ---------------------------------------------------------------- */

struct splitting {
	struct weights_split *s;
	size_t n;
	const size_t *same;
	size_t *file;  /* by tensor: its file */
	size_t *next;  /* by tensor: the next one in its file, or n */
	size_t *first; /* by file: its first tensor */
	size_t *last;  /* by file: its last tensor */
	size_t *rank;  /* by file: its number in the output */
	size_t *twin;  /* by tensor: the next one in its storage, or n */
	size_t *scratch;
};

#define NO_FILE SIZE_MAX

/* Append a tensor to a file; the first of an empty file is n. */
static void weights_split_put(struct splitting *x, size_t i, size_t f)
{
	assert(i < x->n);
	if (x->first[f] == x->n)
		x->first[f] = i;
	else
		x->next[x->last[f]] = i;
	x->last[f] = i;
	x->file[i] = f;
}

/* Assign the storages to files, which are numbered in the order in which they
 * are opened. */
static void weights_split_place(struct splitting *x, const uint64_t *len,
				uint64_t max)
{
	size_t current = NO_FILE, files = 0, closed = 0;
	uint64_t size = 0;

	for (size_t i = 0; i < x->n; i++) {
		if (x->same[i] != i)
			continue;
		x->s->total += len[i];
		if (len[i] > max) {
			weights_split_put(x, i, files);
			x->rank[files++] = closed++;
			continue;
		}
		if (current != NO_FILE && len[i] > max - size) {
			x->rank[current] = closed++;
			current = NO_FILE;
		}
		if (current == NO_FILE) {
			current = files++;
			size = 0;
		}
		weights_split_put(x, i, current);
		size += len[i];
		assert(size <= max);
	}
	if (current != NO_FILE)
		x->rank[current] = closed;
	x->s->nfiles = files;
}

/* Append tensors that share a storage to the file that has it, storage by
 * storage in the order of their first tensors. */
static void place_twins(struct splitting *x)
{
	/* The last tensor of a storage so far, by the storage's first one. */
	size_t *const last = x->scratch;

	for (size_t i = 0; i < x->n; i++) {
		x->twin[i] = x->n;
		last[i] = i;
		assert(x->same[i] <= i);
		if (x->same[i] != i) {
			x->twin[last[x->same[i]]] = i;
			last[x->same[i]] = i;
		}
	}
	for (size_t i = 0; i < x->n; i++)
		for (size_t k = x->twin[i]; x->same[i] == i && k < x->n;
		     k = x->twin[k])
			weights_split_put(x, k, x->file[i]);
}

static void weights_split_list(const struct splitting *x)
{
	struct weights_split *const s = x->s;
	size_t *const at_rank = x->scratch;
	size_t n = 0;

	for (size_t f = 0; f < s->nfiles; f++)
		at_rank[x->rank[f]] = f;
	for (size_t r = 0; r < s->nfiles; r++) {
		s->begin[r] = n;
		for (size_t i = x->first[at_rank[r]]; i < x->n; i = x->next[i])
			s->order[n++] = i;
	}
	assert(n == x->n); /* every tensor is in one file */
	/* Without tensors there is still one file, an empty one. */
	if (!s->nfiles)
		s->begin[s->nfiles++] = 0;
	s->begin[s->nfiles] = n;
}

int weights_split_init(struct weights_split *s, const uint64_t *len,
		       const size_t *same, size_t n, uint64_t max,
		       struct errmsg *err)
{
	const size_t room = n + 1;
	size_t *const scratch = calloc(7 * room, sizeof(*scratch));
	struct splitting x = { .s = s, .n = n, .same = same };

	*s = (struct weights_split){
		.order = calloc(n + 1, sizeof(*s->order)),
		.begin = calloc(n + 2, sizeof(*s->begin)),
		.n = n,
	};
	if (!scratch || !s->order || !s->begin) {
		free(scratch);
		weights_split_done(s);
		return errmsg_nomem(err, NULL);
	}
	x.file = scratch;
	x.next = scratch + room;
	x.first = scratch + 2 * room;
	x.last = scratch + 3 * room;
	x.rank = scratch + 4 * room;
	x.twin = scratch + 5 * room;
	x.scratch = scratch + 6 * room;
	for (size_t i = 0; i < n; i++)
		x.next[i] = x.first[i] = n;
	weights_split_place(&x, len, max);
	place_twins(&x);
	weights_split_list(&x);
	free(scratch);
	return 0;
}

void weights_split_done(struct weights_split *s)
{
	free(s->order);
	free(s->begin);
	*s = (struct weights_split){ 0 };
}

/* --- names and index --------------------------------------------------------- */

void weights_split_name(const struct weights_split *s, const char *stem,
			const char *suffix, size_t f, char out[NAME_MAX + 1])
{
	assert(f < s->nfiles);
	if (s->nfiles == 1)
		snprintf(out, NAME_MAX + 1, "%s.%s", stem, suffix);
	else
		snprintf(out, NAME_MAX + 1, "%s-%05zu-of-%05zu.%s", stem, f + 1,
			 s->nfiles, suffix);
}

struct named {
	const char *name; /* first: array_by_text */
	size_t file;
};

int weights_split_index(const struct weights_split *s, const char *stem,
			const char *suffix, const char *const *names,
			struct bytebuf *out, struct errmsg *err)
{
	struct named *const v = calloc(s->n + 1, sizeof(*v));
	char text[NAME_MAX + 1];
	size_t f = 0;

	if (!v)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < s->n; i++) {
		while (i >= s->begin[f + 1])
			f++;
		v[i] = (struct named){ names[i], f };
	}
	/* strcmp orders UTF-8 by code points, as Python orders strings. */
	qsort(v, s->n, sizeof(*v), array_by_text);
	snprintf(text, sizeof(text),
		 "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64
		 "\n  },\n  \"weight_map\": {",
		 s->total);
	bytebuf_add_str(out, text);
	for (size_t i = 0; i < s->n; i++) {
		bytebuf_add_str(out, i ? ",\n    " : "\n    ");
		json_write_string(out, v[i].name, true);
		weights_split_name(s, stem, suffix, v[i].file, text);
		bytebuf_add_str(out, ": ");
		json_write_string(out, text, true);
	}
	bytebuf_add_str(out, "\n  }\n}\n");
	free(v);
	return out->failed ? errmsg_nomem(err, NULL) : 0;
}
