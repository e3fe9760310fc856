/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan keeps from one mount to the next: the model (index.h), followed
 * by the checksums computed so far.  Numbers are little-endian, widths in bits:
 *
 *   any_stage (8)
 *   digest of the user's merge rules (64; 0: none)
 *   number of parameter files' checksums (32), and for each
 * 	its index in plan_universal.crc (32), the CRC-32 (32)
 *   size of optimizer_state.pt (64; 0 if not known)
 *   number of its storages (32), and for each
 * 	0, or VFILE_CRC_KNOWN | CRC-32 (64)
 *
 * The only way to verify a checksum is to compute it.  A wrong one gives a file
 * that torch.load reads and that Python's zipfile refuses.
 */
#include "ckpt/plan/plan_universal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/model/user_rules.h"

static size_t nslots(const struct plan_universal *u)
{
	return u->r.model.nparams * UC_FILE_SLOTS;
}

static size_t count_sums(vfile_crc *v, size_t n)
{
	size_t known = 0;

	for (size_t i = 0; i < n; i++)
		known += atomic_load(&v[i]) != 0;
	return known;
}

/* The number of facts to save besides parameters' checksums: the model is one;
 * the size and the checksums of optimizer_state.pt are the others. */
static size_t count_others(struct plan_universal *u)
{
	size_t n = 1;

	if (atomic_load(&u->optimizer_known))
		n += 1 + count_sums(u->optimizer_crc, u->optimizer_sums);
	return n;
}

/* Append the checksums of parameters' files and return their number.  Other
 * threads may compute further ones meanwhile. */
static size_t write_sums_of_parameters(struct plan_universal *u,
				       struct bytebuf *b)
{
	const size_t at = b->len;
	size_t n = 0;

	bytebuf_add_le32(b, 0);
	for (size_t i = 0; i < nslots(u); i++) {
		const uint64_t sum = atomic_load(&u->crc[i]);

		if (!sum)
			continue;
		bytebuf_add_le32(b, (uint32_t)i);
		bytebuf_add_le32(b, (uint32_t)sum);
		n++;
	}
	assert(n <= nslots(u));
	if (!b->failed)
		put_le32(b->data + at, (uint32_t)n);
	return n;
}

static void write_optimizer(struct plan_universal *u, struct bytebuf *b)
{
	const bool known = atomic_load(&u->optimizer_known);

	bytebuf_add_le64(b, known ? u->optimizer_size : 0);
	bytebuf_add_le32(b, known ? (uint32_t)u->optimizer_sums : 0);
	for (size_t i = 0; known && i < u->optimizer_sums; i++)
		bytebuf_add_le64(b, atomic_load(&u->optimizer_crc[i]));
}

static uint64_t rules_digest(const struct plan_universal *u)
{
	const struct user_rules *const r = u->plan.options.rules;

	return r ? r->digest : 0;
}

int plan_universal_index(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	struct plan_universal *const u = plan_universal(p);
	const size_t others = count_others(u);
	size_t sums;
	int rc;

	if (count_sums(u->crc, nslots(u)) + others <= u->indexed)
		return 0;
	rc = zckpt_index(&u->r, out, err);
	if (rc)
		return rc;
	bytebuf_add_u8(out, u->plan.options.any_stage);
	bytebuf_add_le64(out, rules_digest(u));
	sums = write_sums_of_parameters(u, out);
	write_optimizer(u, out);
	if (out->failed)
		return errmsg_nomem(err, NULL);
	u->indexed = sums + others;
	return 1;
}

static int fail_damaged(struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "checksums are damaged");
}

/* Read the facts about optimizer_state.pt, which fill the rest of the index. */
static int read_optimizer(struct plan_universal *u, struct span rest,
			  struct errmsg *err)
{
	const uint64_t size = get_le64(rest.p);
	const size_t n = get_le32(rest.p + 8);

	rest = (struct span){ rest.p + 12, rest.len - 12 };
	if (rest.len % 8 || rest.len / 8 != n || (n && !size))
		return fail_damaged(err);
	if (!size)
		return 0;
	u->optimizer_crc = calloc(n + 1, sizeof(*u->optimizer_crc));
	if (!u->optimizer_crc)
		return errmsg_nomem(err, NULL);
	u->optimizer_sums = n;
	for (size_t i = 0; i < n; i++) {
		const uint64_t sum = get_le64(rest.p + 8 * i);

		if (sum && sum >> 32 != VFILE_CRC_KNOWN >> 32)
			return fail_damaged(err);
		atomic_store(&u->optimizer_crc[i], sum);
	}
	u->optimizer_size = size;
	atomic_store(&u->optimizer_known, true);
	return 0;
}

/* Read all checksums; `*sums` is the number of parameter files' ones. */
static int read_sums(struct plan_universal *u, struct span bytes, size_t *sums,
		     struct errmsg *err)
{
	const uint8_t *at = bytes.p;
	size_t left = bytes.len, n;

	if (left < 25 || *at > 1)
		return fail_damaged(err);
	if (*at != u->plan.options.any_stage ||
	    get_le64(at + 1) != rules_digest(u))
		return 0; /* the index is of a tree with other files */
	n = get_le32(at + 9);
	at += 13;
	left -= 13;
	if (n > (left - 12) / 8)
		return fail_damaged(err);
	*sums = n;
	for (; n; n--, at += 8, left -= 8) {
		const uint32_t slot = get_le32(at);

		if (slot >= nslots(u))
			return fail_damaged(err);
		atomic_store(&u->crc[slot], VFILE_CRC_KNOWN | get_le32(at + 4));
	}
	return read_optimizer(u, (struct span){ at, left }, err);
}

int plan_read_crcs(struct plan_universal *u, struct span bytes,
		   struct errmsg *err)
{
	size_t sums = 0;
	const int rc = read_sums(u, bytes, &sums, err);

	/* Count the checksums in the index, not those in `u->crc`: scanning
	 * that array would touch all of its pages. */
	u->indexed = sums + count_others(u);
	return rc;
}
