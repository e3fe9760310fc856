/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a pack.
 *
 * Files are cut into units.  Threads read, compare and encode them, and write each at the end of
 * the previous one, so that the same files make the same pack.
 */
#include "ckpt/pack/pack_write.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/base/parallel.h"
#include "ckpt/pack/pack_hash.h"

/* A unit fits the processor's cache: its bytes are read, compared, encoded and hashed
 * one after the other. */
#define UNIT_BLOCKS 8
#define UNIT (UNIT_BLOCKS * BLOCK_SIZE)

/* Start write-back after this many more bytes: all must be synced in the end.  Starting it for
 * each unit would take a third more processor time. */
#define DISK_STEP (UINT64_C(16) << 20)

struct unit {
	uint32_t input, region;
	uint64_t skip; /* bytes of the region before this unit */
};

/* A unit while a thread works on it. */
struct slot {
	struct packing *p;
	const struct unit *u;
	struct {
		uint32_t stored; /* bytes in the pack; 0: equals its source */
		uint64_t hash;
	} blocks[UNIT_BLOCKS];
	uint64_t at; /* offset of `out` in the pack */
	size_t out_len;
	uint8_t bytes[UNIT];
	uint8_t source[UNIT];     /* the bytes that the unit must have according to the region's
				   * source */
	uint8_t floats[2 * UNIT]; /* source of a rounded unit, before rounding */
	uint8_t out[UNIT_BLOCKS * BLOCK_STORED_MAX];
};

struct packing {
	int fd;
	const struct pack_input *v;
	size_t n;
	const struct pack_work *w;
	struct unit *units;
	size_t nunits, units_cap;

	/* State of the commits, which take place one unit at a time: */
	struct turns turns;
	uint64_t at; /* end of the blocks in the pack */
	struct pack_entry *entries;
	struct pack_extent *extents; /* extents that refer to others still have places in inputs */
	size_t nextents, cap;
	struct bytebuf tables;
	XXH3_state_t *hash; /* of the file that is being committed */
};

static const struct pack_region *region_of(const struct packing *p,
					   const struct unit *u)
{
	return &p->v[u->input].regions[u->region];
}

static size_t unit_len(const struct packing *p, const struct unit *u)
{
	const uint64_t left = region_of(p, u)->len - u->skip;

	return left < UNIT ? (size_t)left : UNIT;
}

/* Return how many bytes of its source a region needs per byte. */
static unsigned scale_of(const struct pack_region *r)
{
	return r->kind == PACK_ROUNDED ? 2 : 1;
}

int pack_input_read(const struct pack_input *in, void *buf, size_t len,
		    uint64_t off, struct errmsg *err)
{
	struct source src;
	int rc = source_open_known(&src, in->path, &in->id, err);

	if (rc)
		return rc;
	rc = source_read(&src, buf, len, off, err);
	source_close(&src);
	return rc;
}

/* Compute `len` bytes of a region from its source. */
static int read_source(struct slot *s, size_t len, struct errmsg *err)
{
	const struct pack_region *r = region_of(s->p, s->u);
	const unsigned scale = scale_of(r);
	const int rc = pack_input_read(
		&s->p->v[r->source], scale == 1 ? s->source : s->floats,
		scale * len, r->from + scale * s->u->skip, err);

	if (!rc && scale == 2)
		block_round(r->type, s->floats, s->source, len / 2);
	return rc;
}

static int unit_encode(struct slot *s, struct errmsg *err)
{
	const struct unit *u = s->u;
	const struct pack_region *r = region_of(s->p, u);
	const bool stored = r->kind == PACK_STORED;
	const size_t len = unit_len(s->p, u);
	int rc = pack_input_read(&s->p->v[u->input], s->bytes, len,
				 r->start + u->skip, err);

	if (!rc && !stored)
		rc = read_source(s, len, err);
	s->out_len = 0;
	for (size_t b = 0; !rc && b * BLOCK_SIZE < len; b++) {
		const size_t off = b * BLOCK_SIZE, n = pack_block_len(len, b);
		const uint8_t *bytes = s->bytes + off;

		s->blocks[b].stored = 0;
		if (!stored && memcmp(bytes, s->source + off, n) == 0)
			continue;
		s->blocks[b].hash = block_hash(bytes, n);
		s->blocks[b].stored = (uint32_t)block_encode(
			r->type, bytes, n, s->out + s->out_len);
		s->out_len += s->blocks[b].stored;
		if (!s->blocks[b].stored)
			rc = errmsg_nomem(err, s->p->w->name);
	}
	return rc;
}

/* Return the extent for bytes of a unit at `start` of the file: the last one, or a new one.  An
 * extent belongs to one region, so a reference to a region is a reference to one extent. */
static struct pack_extent *extent_at(struct packing *p, const struct unit *u,
				     bool stored, uint64_t start)
{
	const struct pack_region *r = region_of(p, u);
	const enum pack_kind kind = stored ? PACK_STORED : r->kind;
	struct pack_entry *entry = &p->entries[u->input];
	struct pack_extent *e = entry->n ? &p->extents[p->nextents - 1] : NULL;

	if (e && e->start >= r->start && e->kind == kind)
		return e;
	if (!array_reserve(&p->extents, &p->cap, p->nextents + 1, sizeof(*e)))
		return NULL;
	e = &p->extents[p->nextents++];
	entry->n++;
	*e = (struct pack_extent){
		.start = start,
		.kind = kind,
		.type = kind == PACK_COPY ? BLOCK_BYTES : r->type,
	};
	if (stored) {
		e->at = p->at;
	} else {
		e->target = r->source;
		e->from = r->from + scale_of(r) * (start - r->start);
	}
	return e;
}

/* Place a unit in the pack. */
static int unit_commit(void *slot, size_t i, struct errmsg *err)
{
	struct slot *s = slot;
	struct packing *p = s->p;
	const struct unit *u = s->u;
	const uint64_t start = region_of(p, u)->start + u->skip;
	const size_t len = unit_len(p, u);
	struct pack_entry *entry = &p->entries[u->input];

	(void)i;
	s->at = p->at;
	for (size_t b = 0; b * BLOCK_SIZE < len; b++) {
		const uint32_t stored = s->blocks[b].stored;
		struct pack_extent *e =
			extent_at(p, u, stored, start + b * BLOCK_SIZE);

		if (!e)
			return errmsg_nomem(err, p->w->name);
		e->len += pack_block_len(len, b);
		if (!stored)
			continue;
		e->stored += stored;
		p->at += stored;
		bytebuf_add_le32(&p->tables, stored);
		bytebuf_add_le64(&p->tables, s->blocks[b].hash);
	}
	if (start == 0)
		XXH3_128bits_reset(p->hash);
	XXH3_128bits_update(p->hash, s->bytes, len);
	if (start + len == entry->size) {
		const XXH128_hash_t h = XXH3_128bits_digest(p->hash);

		entry->hash[0] = h.low64;
		entry->hash[1] = h.high64;
	}
	return p->w->progress ? progress_add(p->w->progress, len) : 0;
}

static int write_at(const struct packing *p, const void *bytes, size_t len,
		    uint64_t at, struct errmsg *err)
{
	return pwrite_all(p->fd, bytes, len, at)
		       ? errmsg_errno(err, p->w->name, "cannot write")
		       : 0;
}

static int unit_pack(void *packing, size_t i, struct errmsg *err)
{
	struct packing *p = packing;
	struct slot *s = scratch_take(sizeof(*s));
	int rc;

	if (s) {
		s->p = p;
		s->u = &p->units[i];
	}
	rc = s ? unit_encode(s, err) : errmsg_nomem(err, NULL);
	rc = turns_take(&p->turns, i, rc, unit_commit, s, err);
	if (!rc)
		rc = write_at(p, s->out, s->out_len, s->at, err);
	if (!rc && s->at / DISK_STEP != (s->at + s->out_len) / DISK_STEP)
		sync_file_range(p->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	scratch_give(s);
	return rc;
}

/* Let an extent refer to the extent that holds the bytes of the input that it names. */
static void set_target(struct packing *p, struct pack_extent *e)
{
	const struct pack_index x = { .extents = p->extents };
	const uint32_t target =
		pack_index_extent(&x, &p->entries[e->target], e->from);

	e->target = target;
	e->from -= p->extents[target].start;
	assert(p->extents[target].kind == PACK_STORED);
}

static void place_extents(struct packing *p)
{
	uint64_t at = p->at;

	/* Extents come in the order of their files. */
	for (size_t i = 1; i < p->n; i++)
		p->entries[i].first =
			p->entries[i - 1].first + p->entries[i - 1].n;
	for (size_t i = 0; i < p->nextents; i++) {
		struct pack_extent *e = &p->extents[i];
		const size_t size =
			(size_t)pack_extent_blocks(e) * PACK_TABLE_RECORD;

		if (e->kind != PACK_STORED) {
			set_target(p, e);
			continue;
		}
		e->table = at;
		e->table_hash = XXH3_64bits(p->tables.data + (at - p->at), size);
		at += size;
	}
}

/* Write the tables and the index, and then the header. */
static int write_index(struct packing *p, struct errmsg *err)
{
	const struct pack_index x = {
		.entries = p->entries,
		.extents = p->extents,
		.nentries = (uint32_t)p->n,
		.nextents = (uint32_t)p->nextents,
	};
	struct pack_header h = { .index_at = p->at + p->tables.len };
	struct bytebuf index = { 0 };
	int rc = 0;

	if (p->tables.failed)
		return errmsg_nomem(err, p->w->name);
	place_extents(p);
	pack_index_put(&x, &index);
	if (index.failed)
		rc = errmsg_nomem(err, p->w->name);
	h.index_size = index.len;
	h.index_hash = XXH3_64bits(index.data, index.len);
	h.file_size = h.index_at + h.index_size;
	pack_header_seal(&h);
	if (!rc)
		rc = write_at(p, p->tables.data, p->tables.len, p->at, err);
	if (!rc)
		rc = write_at(p, index.data, index.len, h.index_at, err);
	if (!rc)
		rc = write_at(p, &h, sizeof(h), 0, err);
	bytebuf_done(&index);
	return rc;
}

static bool add_units(struct packing *p, uint32_t input)
{
	for (uint32_t k = 0; k < p->v[input].nregions; k++)
		for (uint64_t at = 0; at < p->v[input].regions[k].len;
		     at += UNIT) {
			if (!array_reserve(&p->units, &p->units_cap,
					   p->nunits + 1, sizeof(*p->units)))
				return false;
			p->units[p->nunits++] = (struct unit){ input, k, at };
		}
	return true;
}

static bool make_entries(struct packing *p)
{
	/* The hash of empty files. */
	const XXH128_hash_t none = XXH3_128bits("", 0);

	p->hash = XXH3_createState();
	p->entries = calloc(p->n, sizeof(*p->entries));
	if (!p->hash || !p->entries)
		return false;
	for (size_t i = 0; i < p->n; i++) {
		const bool file = S_ISREG(p->v[i].mode);

		p->entries[i] = (struct pack_entry){
			.name = p->v[i].name,
			.mode = p->v[i].mode,
			.mtime_s = p->v[i].mtime_s,
			.mtime_ns = p->v[i].mtime_ns,
			.size = file ? p->v[i].id.size : 0,
			.hash = { file ? none.low64 : 0, file ? none.high64 : 0 },
		};
		if (!add_units(p, (uint32_t)i))
			return false;
	}
	return true;
}

static int pack_all(struct packing *p, struct errmsg *err)
{
	int rc;

	if (p->n > PACK_ENTRIES_MAX)
		return errmsg_set(err, -E2BIG, "%s: %zu files are too many",
				  p->w->name, p->n);
	if (!make_entries(p))
		return errmsg_nomem(err, p->w->name);
	rc = parallel_for(p->nunits, p->w->width, unit_pack, p, err);
	if (rc)
		return rc;
	if (p->nextents > PACK_EXTENTS_MAX)
		return errmsg_set(err, -E2BIG, "%s: more than %llu extents",
				  p->w->name,
				  (unsigned long long)PACK_EXTENTS_MAX);
	return write_index(p, err);
}

int pack_write(int fd, const struct pack_input *v, size_t n,
	       const struct pack_work *w, struct errmsg *err)
{
	struct packing p = { .fd = fd,
			     .v = v,
			     .n = n,
			     .w = w,
			     .turns = TURNS_INIT,
			     .at = PACK_HEADER_SIZE };
	const int rc = pack_all(&p, err);

	XXH3_freeState(p.hash);
	bytebuf_done(&p.tables);
	free(p.units);
	free(p.entries);
	free(p.extents);
	return rc;
}
