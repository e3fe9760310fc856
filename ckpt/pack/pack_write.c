/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a pack.
 *
 * Files are cut into units, which threads read, compare and encode; results are
 * put in order before they get their place in the pack, so that the same files
 * make the same pack.  The codings of planes are chosen once for each run of
 * blocks in a unit.
 */
#include "ckpt/pack/pack_write.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_hash.h"
#include "ckpt/sys/pipeline.h"
#include "ckpt/sys/write_all.h"
#include "ckpt/tensor/cast.h"

/* Bytes of a file that a thread takes at once. */
#define UNIT_BLOCKS 16
#define UNIT (UNIT_BLOCKS * BLOCK_SIZE)

/* A run that equals its original saves more than the extent that says so costs
 * only if it is longer than this. */
#define EQUAL_MIN 4096

/* Runs of a unit that are equal or not: each at least EQUAL_MIN, but for the
 * ones in between. */
#define PIECES_MAX (2 * (UNIT / EQUAL_MIN) + 2)

struct pack_unit {
	uint32_t input;
	uint32_t region;
	uint64_t skip; /* bytes of the region before it */
};

/* A run of a unit that is stored, or that refers to its region's source. */
struct unit_piece {
	size_t off, len;
	bool stored;
	size_t first_block, nblocks; /* of the unit's, if stored */
};

/* What a thread has of the unit that it works on. */
struct unit_slot {
	struct block_encoder *encoder;
	struct unit_piece pieces[PIECES_MAX];
	size_t npieces;
	struct {
		uint32_t len;
		uint64_t hash;
	} blocks[UNIT_BLOCKS + PIECES_MAX];
	size_t nblocks;
	size_t out_len;
	uint64_t at; /* in the pack */
	uint8_t *bytes, *original,
		*made; /* UNIT; of floats twice as many; UNIT */
	uint8_t *out;  /* encoded blocks */
};

/* Each piece may end in a block that is not full. */
#define OUT_MAX (UNIT + (UNIT_BLOCKS + PIECES_MAX) * 4 * PLANES_MAX)

struct packing {
	int fd;
	const struct pack_input *v;
	size_t n;
	const struct pack_write_options *o;
	struct pack_unit *units;
	size_t nunits;
	struct errmsg *err;
	pthread_mutex_t err_lock; /* of several errors one is reported */
	bool failed;              /* protected by err_lock */

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

/* The message of the first thread that fails. */
static int pack_report(struct packing *p, int rc, const struct errmsg *why)
{
	pthread_mutex_lock(&p->err_lock);
	if (!p->failed && p->err)
		*p->err = *why;
	p->failed = true;
	pthread_mutex_unlock(&p->err_lock);
	return rc;
}

/* --- slots ----------------------------------------------------------------- */

static void slot_end(void *arg)
{
	struct unit_slot *const s = arg;

	if (!s)
		return;
	block_encoder_free(s->encoder);
	free(s->bytes);
	free(s->original);
	free(s->made);
	free(s->out);
	free(s);
}

static void *slot_begin(void *ctx)
{
	struct unit_slot *const s = calloc(1, sizeof(*s));

	(void)ctx;
	if (!s)
		return NULL;
	s->encoder = block_encoder_new();
	s->bytes = malloc(UNIT);
	s->original = malloc(2 * UNIT);
	s->made = malloc(UNIT);
	s->out = malloc(OUT_MAX);
	if (s->encoder && s->bytes && s->original && s->made && s->out)
		return s;
	slot_end(s);
	return NULL;
}

/* --- work: read, compare, encode ------------------------------------------- */

static int read_input(const struct pack_input *in, void *buf, size_t len,
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

static void add_piece(struct unit_slot *s, size_t off, size_t len, bool stored)
{
	struct unit_piece *const last =
		s->npieces ? &s->pieces[s->npieces - 1] : NULL;

	if (!len)
		return;
	if (last && last->stored == stored) {
		last->len += len;
		return;
	}
	assert(s->npieces < PIECES_MAX);
	s->pieces[s->npieces++] =
		(struct unit_piece){ .off = off, .len = len, .stored = stored };
}

/* Cut a unit of `len` bytes into runs that equal `made` and others, by steps
 * that are multiples of every element's width. */
static void compare(struct unit_slot *s, const uint8_t *made, size_t len)
{
	for (size_t i = 0, n; i < len; i += n) {
		n = len - i < EQUAL_MIN ? len - i : EQUAL_MIN;
		add_piece(s, i, n, memcmp(s->bytes + i, made + i, n) != 0);
	}
}

static int find_pieces(struct packing *p, struct unit_slot *s,
		       const struct pack_region *r, size_t len, uint64_t skip,
		       struct errmsg *err)
{
	const bool rounded = r->kind == PACK_ROUNDED;
	const size_t scale = rounded ? 2 : 1;
	int rc;

	s->npieces = 0;
	if (r->kind == PACK_STORED) {
		add_piece(s, 0, len, true);
		return 0;
	}
	rc = read_input(&p->v[r->source], s->original, scale * len,
			r->from + scale * skip, err);
	if (rc)
		return rc;
	if (rounded)
		cast(DTYPE_F32, s->original,
		     r->type == BLOCK_F16 ? DTYPE_F16 : DTYPE_BF16, s->made,
		     len / 2);
	compare(s, rounded ? s->made : s->original, len);
	return 0;
}

static void encode_piece(struct unit_slot *s, struct unit_piece *piece,
			 enum block_type type)
{
	const uint8_t *from = s->bytes + piece->off;
	struct block_codings codings;

	piece->first_block = s->nblocks;
	for (size_t left = piece->len, n; left; left -= n, from += n) {
		n = left < BLOCK_SIZE ? left : BLOCK_SIZE;
		if (left == piece->len)
			block_choose(s->encoder, type, from, n, &codings);

		const size_t stored = block_encode(s->encoder, type, &codings,
						   from, n, s->out + s->out_len);

		s->blocks[s->nblocks].len = (uint32_t)stored;
		s->blocks[s->nblocks++].hash = block_hash(from, n);
		s->out_len += stored;
	}
	piece->nblocks = s->nblocks - piece->first_block;
}

static const struct pack_region *region_of(const struct packing *p, size_t i,
					   size_t *len)
{
	const struct pack_unit *const u = &p->units[i];
	const struct pack_region *const r = &p->v[u->input].regions[u->region];
	const uint64_t left = r->len - u->skip;

	*len = left < UNIT ? (size_t)left : UNIT;
	return r;
}

static int unit_work(void *ctx, void *slot, size_t i)
{
	struct packing *const p = ctx;
	struct unit_slot *const s = slot;
	const struct pack_unit *const u = &p->units[i];
	struct errmsg err = { "" };
	size_t len;
	const struct pack_region *const r = region_of(p, i, &len);
	int rc = read_input(&p->v[u->input], s->bytes, len, r->start + u->skip,
			    &err);

	if (!rc)
		rc = find_pieces(p, s, r, len, u->skip, &err);
	if (rc)
		return pack_report(p, rc, &err);
	s->nblocks = s->out_len = 0;
	for (size_t k = 0; k < s->npieces; k++)
		if (s->pieces[k].stored)
			encode_piece(s, &s->pieces[k], r->type);
	return 0;
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
			const struct unit_piece *piece, uint64_t *at)
{
	const uint64_t scale = r->kind == PACK_ROUNDED ? 2 : 1;
	struct pack_extent *last, e = {
		.start = r->start + u->skip + piece->off,
		.kind = piece->stored ? PACK_STORED : r->kind,
		.type = r->kind == PACK_COPY && !piece->stored ? BLOCK_BYTES
							       : r->type,
	};

	if (piece->stored)
		e.at = *at;
	else
		e.from = r->from + scale * (u->skip + piece->off);
	last = continued(p, u, r, &e, r->source);
	if (!last) {
		last = add_extent(p, r->source, &e);
		if (!last)
			return errmsg_nomem(p->err, p->o->name);
		p->entries[u->input].n++;
	}
	last->len += piece->len;
	for (size_t i = 0; piece->stored && i < piece->nblocks; i++) {
		const size_t b = piece->first_block + i;

		bytebuf_add_le32(&p->tables, s->blocks[b].len);
		bytebuf_add_le64(&p->tables, s->blocks[b].hash);
		last->stored += s->blocks[b].len;
		*at += s->blocks[b].len;
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

static int unit_commit(void *ctx, void *slot, size_t i)
{
	struct packing *const p = ctx;
	struct unit_slot *const s = slot;
	const struct pack_unit *const u = &p->units[i];
	size_t len;
	const struct pack_region *const r = region_of(p, i, &len);
	uint64_t at = p->at;
	int rc = 0;

	hash_unit(p, u, s->bytes, len);
	s->at = p->at;
	for (size_t k = 0; !rc && k < s->npieces; k++)
		rc = commit_piece(p, u, r, s, &s->pieces[k], &at);
	p->at = at;
	if (!rc && p->o->progress && !p->o->progress(p->o->ctx, len))
		rc = -EINTR;
	return rc;
}

/* --- finish: write --------------------------------------------------------- */

static int pack_put(const struct packing *p, const void *bytes, size_t len,
		    uint64_t at, struct errmsg *err)
{
	const int rc = pwrite_all(p->fd, bytes, len, at);

	return rc ? errmsg_set(err, rc, "%s: cannot write: %s", p->o->name,
			       strerror(-rc))
		  : 0;
}

static int unit_finish(void *ctx, void *slot, size_t i)
{
	struct packing *const p = ctx;
	const struct unit_slot *const s = slot;
	struct errmsg err = { "" };
	const int rc = pack_put(p, s->out, s->out_len, s->at, &err);

	(void)i;
	return rc ? pack_report(p, rc, &err) : 0;
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
	rc = pack_put(p, p->tables.data, p->tables.len, p->at, err);
	if (!rc)
		rc = pack_put(p, index.data, index.len, h.index_at, err);
	if (!rc)
		rc = pack_put(p, head, sizeof(head), 0, err);
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
			n += (size_t)((p->v[i].regions[k].len + UNIT - 1) / UNIT);
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
			     skip += UNIT)
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

static int pack_units(struct packing *p, uint64_t *size)
{
	static const struct pipeline_ops ops = {
		.begin = slot_begin,
		.end = slot_end,
		.work = unit_work,
		.commit = unit_commit,
		.finish = unit_finish,
	};
	int rc;

	p->hash = XXH3_createState();
	if (!p->hash || !make_units(p) || !make_entries(p))
		return errmsg_nomem(p->err, p->o->name);
	rc = pipeline_run(p->nunits, p->o->width, &ops, p);
	if (rc)
		return rc == -ENOMEM && !p->failed
			       ? errmsg_nomem(p->err, p->o->name)
			       : rc;
	if (p->nextents > PACK_EXTENTS_MAX)
		return errmsg_set(p->err, -E2BIG, "%s: more than %llu extents",
				  p->o->name,
				  (unsigned long long)PACK_EXTENTS_MAX);
	number_extents(p);
	return write_index(p, size, p->err);
}

int pack_write(int fd, const struct pack_input *v, size_t n,
	       const struct pack_write_options *o, uint64_t *size,
	       struct errmsg *err)
{
	struct packing p = {
		.fd = fd, .v = v, .n = n, .o = o, .err = err, .at = PACK_HEADER_SIZE
	};
	int rc;

	if (n > PACK_ENTRIES_MAX)
		return errmsg_set(err, -E2BIG, "%s: %zu files are too many",
				  o->name, n);
	pthread_mutex_init(&p.err_lock, NULL);
	rc = pack_units(&p, size);
	pthread_mutex_destroy(&p.err_lock);
	XXH3_freeState(p.hash);
	bytebuf_done(&p.tables);
	free(p.units);
	free(p.entries);
	free(p.extents);
	free(p.inputs);
	return rc;
}
