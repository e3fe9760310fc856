/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first twenty digits of `.data/serialization_id`.
 *
 * torch (caffe2/serialize/inline_container.cc, writeSerializationId) combines
 * std::hash of every record name, iterating an unordered_set.  The result thus
 * depends on libstdc++: its string hash (MurmurHash64A with a fixed seed) and
 * the order of its hash table, which is one singly linked list:
 *
 *   - a node whose bucket is empty goes to the front of the list;
 *   - otherwise it goes right after the node before its bucket's first;
 *   - a rehash walks the list and re-inserts by the same rules (keeping what
 *     follows in place), just before the insertion that outgrew the buckets.
 *
 * No loader reads the value; it is computed so that our files equal torch's.
 */
#include "ckpt/format/serialization_id.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"

#define NAME_MAX_LEN 32
#define HASH_SEED UINT64_C(0xc70f6907) /* std::hash's default */

/* Bucket counts that one-by-one insertion goes through (_Prime_rehash_policy:
 * the first prime of its list that doubles the last). */
static const size_t bucket_counts[] = {
	13,     29,     59,      127,     257,     541,      1109,
	2357,   5087,   10273,   20753,   42043,   85229,    172933,
	351061, 712697, 1447153, 2938679, 5967347, 12117689,
};

struct table {
	uint64_t *hash; /* of each node; node 0 is before-begin */
	size_t *next;   /* 0: end */
	size_t *before; /* per bucket: node before its first; SIZE_MAX: empty */
	size_t nbuckets;
	size_t grown; /* next index into bucket_counts */
	size_t n;
};

static uint64_t shift_mix(uint64_t v)
{
	return v ^ v >> 47;
}

/* libstdc++-v3/libsupc++/hash_bytes.cc, 64-bit _Hash_bytes. */
static uint64_t hash_string(const char *s)
{
	const uint64_t mul = UINT64_C(0xc6a4a7935bd1e995);
	const uint8_t *p = (const uint8_t *)s;
	size_t len = strlen(s);
	uint64_t h = HASH_SEED ^ (len * mul);

	for (; len >= 8; len -= 8, p += 8)
		h = (h ^ shift_mix(get_le64(p) * mul) * mul) * mul;
	if (len) {
		uint64_t tail = 0;

		for (size_t i = len; i-- > 0;)
			tail = tail << 8 | p[i];
		h = (h ^ tail) * mul;
	}
	return shift_mix(shift_mix(h) * mul);
}

static void link_node(struct table *t, size_t node)
{
	size_t *before = &t->before[t->hash[node] % t->nbuckets];
	const bool empty = *before == SIZE_MAX;
	const size_t after = empty ? 0 : *before;

	t->next[node] = t->next[after];
	t->next[after] = node;
	if (!empty)
		return;
	*before = 0;
	if (t->next[node])
		t->before[t->hash[t->next[node]] % t->nbuckets] = node;
}

static bool rehash(struct table *t)
{
	size_t node = t->next[0], n;

	if (t->grown == COUNT(bucket_counts))
		return false;
	n = bucket_counts[t->grown++];
	free(t->before);
	t->before = malloc(n * sizeof(*t->before));
	if (!t->before)
		return false;
	memset(t->before, 0xff, n * sizeof(*t->before));
	t->nbuckets = n;
	t->next[0] = 0;
	while (node) {
		const size_t following = t->next[node];

		link_node(t, node);
		node = following;
	}
	return true;
}

static bool insert(struct table *t, const char *name)
{
	if (t->n == t->nbuckets && !rehash(t))
		return false;
	assert(t->n < t->nbuckets); /* a load factor of 1 at most */
	t->hash[++t->n] = hash_string(name);
	link_node(t, t->n);
	return true;
}

bool serialization_id(size_t nstorages, uint64_t *out)
{
	static const char *const first[] = { "data.pkl", ".format_version",
					     ".storage_alignment", "byteorder" };
	const size_t n = nstorages + 5;
	struct table t = {
		.hash = calloc(n + 1, sizeof(*t.hash)),
		.next = calloc(n + 1, sizeof(*t.next)),
	};
	bool ok = t.hash && t.next;
	uint64_t h = 0;

	for (size_t i = 0; ok && i < COUNT(first); i++)
		ok = insert(&t, first[i]);
	for (size_t i = 0; ok && i < nstorages; i++) {
		char name[NAME_MAX_LEN];

		snprintf(name, sizeof(name), "data/%zu", i);
		ok = insert(&t, name);
	}
	ok = ok && insert(&t, "version");
	for (size_t node = ok ? t.next[0] : 0; node; node = t.next[node])
		h = serialization_id_combine(h, t.hash[node]);
	free(t.hash);
	free(t.next);
	free(t.before);
	if (ok)
		*out = h;
	return ok;
}
