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
#include "ckpt/views/weights_split.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"

/* A tensor, and its file. */
struct placed {
	size_t file;  /* number */
	bool twin;    /* shares a storage with an earlier tensor */
	size_t owner; /* the first tensor of its storage */
	size_t i;
};

/* Order of a file's tensors: first one for each storage, then the others, storage by storage. */
static int by_place(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	return ORDER(x->file, y->file) ?: ORDER(x->twin, y->twin) ?:
	       ORDER(x->owner, y->owner) ?: ORDER(x->i, y->i);
}

/* Assign tensors to files.  Files are numbered in the order in which they are closed: a
 * file that is being filled gets its number, `closed`, with the tensor that ends it.
 * `filling` is scratch memory for its storages.  Returns the number of files. */
static size_t place_tensors(struct placed *v, size_t *filling, const uint64_t *len,
			    const size_t *same, size_t n, uint64_t max, uint64_t *total)
{
	size_t closed = 0, k = 0;
	uint64_t size = 0;

	*total = 0;
	for (size_t i = 0; i < n; i++) {
		assert(same[i] <= i);
		v[i] = (struct placed){ 0, same[i] != i, same[i], i };
		if (same[i] != i)
			continue;
		*total += len[i];
		if (len[i] > max) {
			v[i].file = closed++;
			continue;
		}
		if (k && len[i] > max - size) {
			while (k)
				v[filling[--k]].file = closed;
			closed++;
			size = 0;
		}
		filling[k++] = i;
		size += len[i];
	}
	for (size_t f = 0; f < k; f++)
		v[filling[f]].file = closed;
	for (size_t i = 0; i < n; i++)
		v[i].file = v[same[i]].file;
	return closed + (k != 0);
}

int weights_split_init(struct weights_split *s, const uint64_t *len, const size_t *same, size_t n,
		       uint64_t max, struct errmsg *err)
{
	struct placed *v = calloc(n + 1, sizeof(*v));

	*s = (struct weights_split){
		.order = calloc(n + 1, sizeof(*s->order)),
		.begin = calloc(n + 2, sizeof(*s->begin)),
		.n = n,
	};
	if (!v || !s->order || !s->begin) {
		free(v);
		weights_split_done(s);
		return errmsg_nomem(err, NULL);
	}
	s->nfiles = place_tensors(v, s->order, len, same, n, max, &s->total);
	/* Without tensors there is still one file, an empty one. */
	if (!s->nfiles)
		s->nfiles = 1;
	if (n)
		qsort(v, n, sizeof(*v), by_place);
	for (size_t i = 0; i < n; i++) {
		s->order[i] = v[i].i;
		s->begin[v[i].file + 1] = i + 1;
	}
	free(v);
	return 0;
}

void weights_split_done(struct weights_split *s)
{
	free(s->order);
	free(s->begin);
	*s = (struct weights_split){ 0 };
}

void weights_split_name(const struct weights_split *s, const char *stem, const char *suffix,
			size_t f, char out[NAME_MAX + 1])
{
	assert(f < s->nfiles);
	if (s->nfiles == 1)
		snprintf(out, NAME_MAX + 1, "%s.%s", stem, suffix);
	else
		snprintf(out, NAME_MAX + 1, "%s-%05zu-of-%05zu.%s", stem, f + 1, s->nfiles, suffix);
}

struct named {
	const char *name; /* first: array_by_text */
	size_t file;
};

int weights_split_index(const struct weights_split *s, const char *stem, const char *suffix,
			const char *const *names, struct bytebuf *out, struct errmsg *err)
{
	struct named *v = calloc(s->n + 1, sizeof(*v));
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
	bytebuf_add_format(out,
			   "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64
			   "\n  },\n  \"weight_map\": {",
			   s->total);
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
