/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a pack.
 *
 * Files are cut into units, which threads encode; results are put in order before
 * they get their place in the pack, so that the same files make the same pack.
 */
#include "ckpt/pack/pack_write.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_hash.h"
#include "ckpt/pack/pack_unit.h"
#include "ckpt/sys/filewriter.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/sys/write_all.h"

struct packing {
	int fd;
	struct filewriter *out;
	const struct pack_input *v;
	size_t n;
	const struct pack_write_options *o;
	struct pack_unit *units;
	size_t nunits;

	/* What has been committed: */
	uint64_t at; /* end of the blocks in the pack */
	struct pack_entry *entries;
	struct pack_extent *extents;
	size_t *inputs; /* of each extent that refers: what its region names */
	size_t nextents, cap, inputs_cap;
	struct bytebuf tables;
	XXH3_state_t *hash; /* of the file that is being committed */
	uint64_t hashed;
};

/* --- work ------------------------------------------------------------------ */

static void *slot_begin(void)
{
	return unit_slot_new();
}

static void slot_end(void *slot)
{
	unit_slot_free(slot);
}

static int unit_work(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	const struct packing *const p = ctx;

	return pack_unit_encode(p->v, &p->units[i], slot, err);
}

/* --- commit: places, extents, hashes --------------------------------------- */

static struct pack_extent *add_extent(struct packing *p, size_t input,
				      const struct pack_extent *e)
{
	if (!array_reserve(&p->extents, &p->cap, p->nextents + 1, sizeof(*e)) ||
	    !array_reserve(&p->inputs, &p->inputs_cap, p->nextents + 1,
			   sizeof(*p->inputs)))
		return NULL;
	p->inputs[p->nextents] = input;
	p->extents[p->nextents] = *e;
	return &p->extents[p->nextents++];
}

/* The last extent, if the piece continues it. */
static struct pack_extent *continued(struct packing *p,
				     const struct pack_unit *u,
				     const struct pack_region *r,
				     const struct pack_extent *e, size_t input)
{
	struct pack_extent *const last =
		p->entries[u->input].n ? &p->extents[p->nextents - 1] : NULL;
	const uint64_t scale = e->kind == PACK_ROUNDED ? 2 : 1;

	/* An extent is of one region, so that what refers to a region refers to
	 * one extent. */
	if (!last || last->kind != e->kind || last->type != e->type ||
	    last->start < r->start)
		return NULL;
	if (e->kind == PACK_STORED)
		return last->len % BLOCK_SIZE == 0 ? last : NULL;
	return p->inputs[p->nextents - 1] == input &&
			       last->from + scale * last->len == e->from
		       ? last
		       : NULL;
}

static int commit_piece(struct packing *p, const struct pack_unit *u,
			const struct pack_region *r, const struct unit_slot *s,
			const struct unit_piece *piece, struct errmsg *err)
{
	const uint64_t scale = r->kind == PACK_ROUNDED ? 2 : 1;
	struct pack_extent *last, e = {
		.start = r->start + u->skip + piece->off,
		.kind = piece->stored ? PACK_STORED : r->kind,
		.type = r->kind == PACK_COPY && !piece->stored ? BLOCK_BYTES
							       : r->type,
	};

	if (piece->stored)
		e.at = p->at;
	else
		e.from = r->from + scale * (u->skip + piece->off);
	last = continued(p, u, r, &e, r->source);
	if (!last) {
		last = add_extent(p, r->source, &e);
		if (!last)
			return errmsg_nomem(err, p->o->name);
		p->entries[u->input].n++;
	}
	last->len += piece->len;
	for (size_t i = 0; piece->stored && i < piece->nblocks; i++) {
		const size_t b = piece->first_block + i;

		bytebuf_add_le32(&p->tables, s->blocks[b].len);
		bytebuf_add_le64(&p->tables, s->blocks[b].hash);
		last->stored += s->blocks[b].len;
		p->at += s->blocks[b].len;
	}
	return 0;
}

/* The content's hash, once all of a file has been seen. */
static void hash_unit(struct packing *p, const struct pack_unit *u,
		      const uint8_t *bytes, size_t len)
{
	struct pack_entry *const e = &p->entries[u->input];

	if (p->hashed == 0)
		XXH3_128bits_reset(p->hash);
	XXH3_128bits_update(p->hash, bytes, len);
	p->hashed += len;
	if (p->hashed == e->size) {
		const XXH128_hash_t h = XXH3_128bits_digest(p->hash);

		e->hash[0] = h.low64;
		e->hash[1] = h.high64;
		p->hashed = 0;
	}
}

static int report_write(const struct packing *p, int rc, struct errmsg *err)
{
	return rc ? errmsg_set(err, rc, "%s: cannot write: %s", p->o->name,
			       strerror(-rc))
		  : 0;
}

static int append(const struct packing *p, const void *bytes, size_t len,
		  struct errmsg *err)
{
	return report_write(p, filewriter_append(p->out, bytes, len), err);
}

static int unit_commit(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	struct packing *const p = ctx;
	struct unit_slot *const s = slot;
	const struct pack_unit *const u = &p->units[i];
	const struct pack_region *const r = &p->v[u->input].regions[u->region];
	const size_t len = pack_unit_len(p->v, u);
	int rc = 0;

	hash_unit(p, u, s->bytes, len);
	for (size_t k = 0; !rc && k < s->npieces; k++)
		rc = commit_piece(p, u, r, s, &s->pieces[k], err);
	if (!rc)
		rc = append(p, s->out, s->out_len, err);
	if (!rc && p->o->progress && !p->o->progress(p->o->ctx, len))
		rc = -EINTR;
	return rc;
}

/* --- the index --------------------------------------------------------------- */

/* What an extent refers to, by number: the extent of that file that holds the
 * first byte of its source. */
static void set_target(struct packing *p, size_t i)
{
	struct pack_extent *const e = &p->extents[i];
	const struct pack_index x = { .extents = p->extents };
	const uint32_t target =
		pack_index_extent(&x, &p->entries[p->inputs[i]], e->from);

	e->target = target;
	e->from -= p->extents[target].start;
	assert(p->extents[target].kind == PACK_STORED);
}

static void place_tables(struct packing *p)
{
	uint64_t at = p->at;

	for (size_t i = 0; i < p->nextents; i++) {
		struct pack_extent *const e = &p->extents[i];
		const size_t size =
			(size_t)pack_extent_blocks(e) * PACK_TABLE_RECORD;

		if (e->kind != PACK_STORED)
			continue;
		e->table = at;
		e->table_hash = XXH3_64bits(p->tables.data + (at - p->at), size);
		at += size;
	}
}

static int write_index(struct packing *p, uint64_t *size, struct errmsg *err)
{
	const struct pack_index x = {
		.entries = p->entries,
		.extents = p->extents,
		.nentries = (uint32_t)p->n,
		.nextents = (uint32_t)p->nextents,
	};
	struct pack_header h = { .index_at = p->at + p->tables.len };
	uint8_t head[PACK_HEADER_SIZE];
	struct bytebuf index = { 0 };
	int rc;

	for (size_t i = 0; i < p->nextents; i++)
		if (p->extents[i].kind != PACK_STORED)
			set_target(p, i);
	place_tables(p);
	pack_index_put(&x, &index);
	if (index.failed || p->tables.failed) {
		bytebuf_done(&index);
		return errmsg_nomem(err, p->o->name);
	}
	h.index_size = index.len;
	h.index_hash = XXH3_64bits(index.data, index.len);
	h.file_size = h.index_at + h.index_size;
	pack_header_put(&h, head);
	rc = append(p, p->tables.data, p->tables.len, err);
	if (!rc)
		rc = append(p, index.data, index.len, err);
	if (!rc)
		rc = report_write(p, filewriter_finish(p->out), err);
	if (!rc)
		rc = report_write(p, pwrite_all(p->fd, head, sizeof(head), 0), err);
	bytebuf_done(&index);
	*size = h.file_size;
	return rc;
}

/* --- the whole --------------------------------------------------------------- */

static size_t count_units(const struct packing *p)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n; i++)
		for (size_t k = 0; k < p->v[i].nregions; k++)
			n += (size_t)((p->v[i].regions[k].len + PACK_UNIT - 1) /
				      PACK_UNIT);
	return n;
}

static bool make_units(struct packing *p)
{
	p->nunits = 0;
	p->units = calloc(count_units(p) + 1, sizeof(*p->units));
	if (!p->units)
		return false;
	for (size_t i = 0; i < p->n; i++)
		for (size_t k = 0; k < p->v[i].nregions; k++)
			for (uint64_t skip = 0; skip < p->v[i].regions[k].len;
			     skip += PACK_UNIT)
				p->units[p->nunits++] =
					(struct pack_unit){ (uint32_t)i,
							    (uint32_t)k, skip };
	return true;
}

static bool make_entries(struct packing *p)
{
	/* What files without content have. */
	const XXH128_hash_t none = XXH3_128bits("", 0);

	p->entries = calloc(p->n, sizeof(*p->entries));
	for (size_t i = 0; p->entries && i < p->n; i++) {
		const bool file = S_ISREG(p->v[i].mode);

		p->entries[i] = (struct pack_entry){
			.name = p->v[i].name,
			.mode = p->v[i].mode,
			.mtime_s = p->v[i].mtime_s,
			.mtime_ns = p->v[i].mtime_ns,
			.size = file ? p->v[i].id.size : 0,
			.hash = { file ? none.low64 : 0, file ? none.high64 : 0 },
		};
	}
	return p->entries;
}

/* Extents come in the order of their files. */
static void number_extents(struct packing *p)
{
	uint32_t first = 0;

	for (size_t i = 0; i < p->n; i++) {
		p->entries[i].first = first;
		first += p->entries[i].n;
	}
}

static int pack_units(struct packing *p, uint64_t *size, struct errmsg *err)
{
	static const struct parallel_steps steps = {
		.begin = slot_begin,
		.end = slot_end,
		.work = unit_work,
		.commit = unit_commit,
	};
	/* The header comes last. */
	static const uint8_t head[PACK_HEADER_SIZE];
	int rc;

	p->hash = XXH3_createState();
	p->out = filewriter_new(p->fd);
	if (!p->hash || !p->out || !make_units(p) || !make_entries(p))
		return errmsg_nomem(err, p->o->name);
	rc = append(p, head, sizeof(head), err);
	if (!rc)
		rc = parallel_in_order(p->nunits, p->o->width, &steps, p, err);
	if (rc)
		return rc;
	if (p->nextents > PACK_EXTENTS_MAX)
		return errmsg_set(err, -E2BIG, "%s: more than %llu extents",
				  p->o->name,
				  (unsigned long long)PACK_EXTENTS_MAX);
	number_extents(p);
	return write_index(p, size, err);
}

int pack_write(int fd, const struct pack_input *v, size_t n,
	       const struct pack_write_options *o, uint64_t *size,
	       struct errmsg *err)
{
	struct packing p = {
		.fd = fd, .v = v, .n = n, .o = o, .at = PACK_HEADER_SIZE
	};
	int rc;

	if (n > PACK_ENTRIES_MAX)
		return errmsg_set(err, -E2BIG, "%s: %zu files are too many",
				  o->name, n);
	rc = pack_units(&p, size, err);
	filewriter_free(p.out);
	XXH3_freeState(p.hash);
	bytebuf_done(&p.tables);
	free(p.units);
	free(p.entries);
	free(p.extents);
	free(p.inputs);
	return rc;
}
