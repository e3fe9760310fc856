/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a pack, as ucpack(5) lays it out.
 *
 * Offsets that follow from the preceding records are checked against their sum, which rules out
 * gaps and overlaps.  References lead to stored extents, so none can be circular.
 *
 * An index may claim any size.  Each record is checked when it has been read, before there is
 * memory for the next, and none that is valid is all zeros: so what an index takes is a small
 * multiple of what really is in the file, holes not counted.
 */
#include "ckpt/pack/pack_index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/pack/pack_hash.h"

#define MODE_BITS (S_IFMT | 07777)
#define NS_PER_S 1000000000u

/* Bytes read at once: most indices of servers' packs need one request. */
#define STEP ((size_t)4 << 20)

_Static_assert(sizeof(struct pack_header) == 56 &&
		       sizeof(struct pack_entry) == sizeof(char *) + 64 &&
		       sizeof(struct pack_extent) == 8 + 48,
	       "records are those of the file");

/* Reads an index or a table front to back, a step at a time, and hashes it. */
struct stream {
	const struct source *src;
	uint64_t at, end; /* the part of the source that has not been read */
	uint8_t *buf;
	size_t first, have; /* bytes of `buf` that have not been taken */
	XXH3_state_t *hash;
};

/* Begin bytes [at, at + len).  Close the stream in any case. */
static int stream_open(struct stream *s, const struct source *src, uint64_t at,
		       uint64_t len, struct errmsg *err)
{
	*s = (struct stream){
		.src = src,
		.at = at,
		.end = at + len,
		.buf = malloc(len < STEP ? (size_t)len + 1 : STEP),
		.hash = XXH3_createState(),
	};
	if (!s->buf || !s->hash)
		return errmsg_nomem(err, src->name);
	XXH3_64bits_reset(s->hash);
	return 0;
}

/* Take the next `len` bytes, which must be there (asserted). */
static int stream_take(struct stream *s, void *out, size_t len, struct errmsg *err)
{
	uint8_t *to = out;
	int rc = 0;

	assert(len <= s->have + (s->end - s->at));
	for (size_t n; len; to += n, len -= n) {
		if (!s->have) {
			s->first = 0;
			s->have = s->end - s->at < STEP ? s->end - s->at : STEP;
			rc = source_read(s->src, s->buf, s->have, s->at, err);
			if (rc)
				return rc;
			XXH3_64bits_update(s->hash, s->buf, s->have);
			s->at += s->have;
		}
		n = len < s->have ? len : s->have;
		memcpy(to, s->buf + s->first, n);
		s->first += n;
		s->have -= n;
	}
	return 0;
}

/* Return the hash of all bytes, which must all have been taken. */
static uint64_t stream_hash(const struct stream *s)
{
	assert(!s->have && s->at == s->end);
	return XXH3_64bits_digest(s->hash);
}

static void stream_close(struct stream *s)
{
	free(s->buf);
	XXH3_freeState(s->hash);
}

static uint64_t header_hash(const struct pack_header *h)
{
	return XXH3_64bits(h, offsetof(struct pack_header, hash));
}

void pack_header_seal(struct pack_header *h)
{
	memcpy(h->magic, PACK_MAGIC, sizeof(h->magic));
	h->version = PACK_VERSION;
	h->block_size = BLOCK_SIZE;
	h->hash = header_hash(h);
}

static int read_header(const struct source *src, struct pack_header *h,
		       struct errmsg *err)
{
	const char *name = src->name;
	int rc;

	if (src->size < sizeof(*h))
		return errmsg_set(err, -EBADMSG, "%s: not a pack", name);
	rc = source_read_exact(src, h, sizeof(*h), 0, err);
	if (rc)
		return rc;
	if (memcmp(h->magic, PACK_MAGIC, sizeof(h->magic)) != 0)
		return errmsg_set(err, -EBADMSG, "%s: not a pack", name);
	if (h->version != PACK_VERSION)
		return errmsg_set(err, -ENOTSUP,
				  "%s: a pack of version %u; this program reads version %u: unpack it with the ucckpt that packed it",
				  name, h->version, PACK_VERSION);
	if (h->hash != header_hash(h) || h->block_size != BLOCK_SIZE ||
	    h->index_at < sizeof(*h) ||
	    !checked_range(h->index_at, h->index_size, h->file_size) ||
	    h->index_at + h->index_size != h->file_size)
		return errmsg_set(err, -EBADMSG, "%s: damaged header", name);
	if (h->file_size != src->size)
		return errmsg_set(err, -EBADMSG,
				  "%s: has %llu bytes instead of %llu", name,
				  (unsigned long long)src->size,
				  (unsigned long long)h->file_size);
	return 0;
}

/* The beginning of an index. */
struct index_head {
	uint64_t nentries, nextents, names_size;
};

struct parser {
	const char *name;
	struct pack_header h;
	struct stream bytes;
	struct index_head head;
	uint64_t files_size; /* bytes of all files */
	uint64_t at; /* end of the blocks and tables so far, in the pack */
	struct pack_index *x;
	size_t entries_cap, extents_cap;
	struct errmsg *err;
};

static int fail(const struct parser *p, const char *what)
{
	return errmsg_set(p->err, -EBADMSG, "%s: damaged index%s", p->name,
			  what);
}

/* `record` is "entry" or "extent", of number i. */
static int fail_at(const struct parser *p, const char *record, uint32_t i,
		   const char *what)
{
	return errmsg_set(p->err, -EBADMSG, "%s: damaged index: %s %u: %s",
			  p->name, record, i, what);
}

uint64_t pack_extent_blocks(const struct pack_extent *x)
{
	return x->len / BLOCK_SIZE + (x->len % BLOCK_SIZE != 0);
}

bool pack_index_name(const char *path, char *name)
{
	size_t len = 0;

	for (size_t n; *path; path += n + (path[n] == '/')) {
		const bool dot = path[0] == '.';

		n = strcspn(path, "/");
		if (n == 0 || (n == 1 && dot))
			continue;
		if ((n == 2 && dot && path[1] == '.') ||
		    len + (len > 0) + n >= PACK_NAME_MAX)
			return false;
		if (len)
			name[len++] = '/';
		memcpy(name + len, path, n);
		len += n;
	}
	name[len] = '\0';
	return true;
}

/* Does an entry for its directory precede it? */
static bool has_parent(const struct pack_index *x, uint32_t i)
{
	const char *name = x->entries[i].name;
	const char *slash = strrchr(name, '/');
	char dir[PACK_NAME_MAX];
	const struct pack_index before = { .entries = x->entries,
					   .nentries = i };
	const size_t n = slash ? (size_t)(slash - name) : 0;
	int64_t at;

	memcpy(dir, name, n);
	dir[n] = '\0';
	at = pack_index_find(&before, dir);
	return at >= 0 && S_ISDIR(x->entries[at].mode);
}

/* `at` is the offset of the name among the names, `first` the number of the entry's first
 * extent. */
static int parse_entry(struct parser *p, uint32_t i, uint64_t at, uint64_t first)
{
	struct pack_entry e = { .name = NULL };
	const int rc = stream_take(&p->bytes, e.file, sizeof(e.file), p->err);

	if (rc)
		return rc;
	if (e.name_at != at || e.name_len >= PACK_NAME_MAX)
		return fail_at(p, "entry", i, "no name");
	if ((e.mode & ~(mode_t)MODE_BITS) ||
	    !(S_ISDIR(e.mode) || S_ISREG(e.mode)) || e.mtime_ns >= NS_PER_S)
		return fail_at(p, "entry", i, "neither a file nor a directory");
	if (e.first != first)
		return fail_at(p, "entry", i, "its extents are not there");
	if (S_ISDIR(e.mode) && (e.n || e.size))
		return fail_at(p, "entry", i, "a directory with content");
	if ((e.n == 0) != (e.size == 0))
		return fail_at(p, "entry", i, "its extents are not its size");
	if (e.size > PACK_BYTES_MAX - p->files_size)
		return fail_at(p, "entry", i,
			       "files of more bytes than a pack can hold");
	/* The user who unpacks owns the files, so the set-id bits of other users are dropped. */
	e.mode &= S_IFMT | 0777;
	p->files_size += e.size;
	if (!array_reserve(&p->x->entries, &p->entries_cap, i + 1, sizeof(e)))
		return errmsg_nomem(p->err, p->name);
	p->x->entries[i] = e;
	p->x->nentries = i + 1;
	return 0;
}

static int parse_entries(struct parser *p)
{
	uint64_t name = 0, extent = 0;

	for (uint32_t i = 0; i < p->head.nentries; i++) {
		const int rc = parse_entry(p, i, name, extent);

		if (rc)
			return rc;
		name += p->x->entries[i].name_len + UINT64_C(1);
		extent += p->x->entries[i].n;
	}
	return name == p->head.names_size && extent == p->head.nextents
		       ? 0
		       : fail(p, ": records that belong to no file");
}

/* Stored extents follow each other. */
static int parse_extent(struct parser *p, uint32_t i)
{
	struct pack_extent e = { .len = 0 };
	const int rc = stream_take(&p->bytes, e.file, sizeof(e.file), p->err);

	if (rc)
		return rc;
	if (e.kind > PACK_ROUNDED || e.type >= BLOCK_TYPES)
		return fail_at(p, "extent", i, "of no known kind");
	if (e.kind == PACK_STORED) {
		if (e.at != p->at || e.stored == 0 ||
		    !checked_range(e.at, e.stored, p->h.index_at))
			return fail_at(p, "extent", i, "its blocks are not there");
		p->at += e.stored;
	} else if (e.target >= p->head.nextents || e.table || e.table_hash) {
		return fail_at(p, "extent", i, "refers to nothing");
	}
	if (!array_reserve(&p->x->extents, &p->extents_cap, i + 1, sizeof(e)))
		return errmsg_nomem(p->err, p->name);
	p->x->extents[i] = e;
	p->x->nextents = i + 1;
	return 0;
}

/* The extents of a file cover it from beginning to end. */
static int parse_file(struct parser *p, const struct pack_entry *e)
{
	const uint32_t first = (uint32_t)e->first, end = first + e->n;
	uint64_t from = 0;

	for (uint32_t i = first; i < end; i++) {
		const int rc = parse_extent(p, i);
		struct pack_extent *x = p->x->extents + i;

		if (rc)
			return rc;
		if (x->start >= e->size ||
		    (i == first ? x->start != 0 : x->start <= from))
			return fail_at(p, "extent", i, "out of order");
		if (i > first)
			x[-1].len = x->start - from;
		x->len = e->size - x->start; /* of the last extent */
		from = x->start;
	}
	return 0;
}

static int parse_extents(struct parser *p)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < p->x->nentries; i++)
		rc = parse_file(p, &p->x->entries[i]);
	return rc;
}

/* The tables follow the blocks, in order, and fill the pack up to the index. */
static int check_tables(struct parser *p)
{
	for (uint32_t i = 0; i < p->x->nextents; i++) {
		const struct pack_extent *e = &p->x->extents[i];
		const uint64_t size = pack_extent_blocks(e) * PACK_TABLE_RECORD;

		if (e->kind != PACK_STORED)
			continue;
		if (e->len % block_width(e->type))
			return fail_at(p, "extent", i, "ends within an element");
		if (e->table != p->at ||
		    !checked_range(e->table, size, p->h.index_at))
			return fail_at(p, "extent", i, "its table is not there");
		p->at += size;
	}
	return p->at == p->h.index_at
		       ? 0
		       : fail(p, ": bytes that belong to no file");
}

/* Is the source of a reference part of a stored extent? */
static bool has_source(const struct pack_index *x, const struct pack_extent *e)
{
	const struct pack_extent *to = &x->extents[e->target];
	const unsigned scale = e->kind == PACK_ROUNDED ? 2 : 1;
	const bool half = e->type == BLOCK_F16 || e->type == BLOCK_BF16;

	return to->kind == PACK_STORED &&
	       checked_range(e->from, scale * e->len, to->len) &&
	       (scale == 1 ? e->type == BLOCK_BYTES : half && e->len % 2 == 0);
}

static int check_references(struct parser *p)
{
	const struct pack_index *x = p->x;
	uint64_t references = 0;

	for (uint32_t i = 0; i < x->nextents; i++) {
		const struct pack_extent *e = &x->extents[i];

		if (e->kind == PACK_STORED)
			continue;
		if (!has_source(x, e))
			return fail_at(p, "extent", i, "refers to nothing");
		if (e->kind == PACK_ROUNDED &&
		    (x->extents[e->target].type != BLOCK_F32 || e->from % 4))
			return fail_at(p, "extent", i, "rounds what is no float");
		references += e->len;
	}
	if (references / PACK_REFERENCES_MAX > p->files_size - references)
		return errmsg_set(p->err, -E2BIG,
				  "%s: claims copies of %llu bytes, but stores only %llu to copy",
				  p->name, (unsigned long long)references,
				  (unsigned long long)(p->files_size - references));
	return 0;
}

static int check_name(const struct parser *p, uint32_t i)
{
	const struct pack_entry *e = &p->x->entries[i];
	char name[PACK_NAME_MAX];

	if (strlen(e->name) != e->name_len)
		return fail_at(p, "entry", i, "no name");
	if ((i == 0) != (e->name_len == 0) || !pack_index_name(e->name, name) ||
	    strcmp(e->name, name) != 0)
		return fail_at(p, "entry", i, "a name that no file can have");
	if (i > 0 && strcmp(e[-1].name, e->name) >= 0)
		return fail_at(p, "entry", i, "out of order");
	if (i == 0 ? !S_ISDIR(e->mode) : !has_parent(p->x, i))
		return fail_at(p, "entry", i, "not in a directory");
	return 0;
}

static int parse_names(struct parser *p)
{
	char *to = malloc(p->head.names_size);
	int rc = to ? 0 : errmsg_nomem(p->err, p->name);

	p->x->names = to;
	for (uint32_t i = 0; !rc && i < p->x->nentries; i++) {
		const size_t n = p->x->entries[i].name_len + (size_t)1;

		rc = stream_take(&p->bytes, to, n, p->err);
		if (rc)
			break;
		if (to[n - 1])
			return fail_at(p, "entry", i, "no name");
		p->x->entries[i].name = to;
		to += n;
		rc = check_name(p, i);
	}
	return rc;
}

static int parse_head(struct parser *p)
{
	struct index_head *h = &p->head;
	uint64_t size = p->h.index_size;
	int rc;

	if (size < sizeof(*h))
		return fail(p, "");
	rc = stream_take(&p->bytes, h, sizeof(*h), p->err);
	if (rc)
		return rc;
	if (h->nentries > PACK_ENTRIES_MAX || h->nextents > PACK_EXTENTS_MAX ||
	    h->names_size > PACK_NAMES_MAX)
		return errmsg_set(
			p->err, -E2BIG,
			"%s: an index of %llu files and %llu extents, and names of %llu bytes",
			p->name, (unsigned long long)h->nentries, (unsigned long long)h->nextents,
			(unsigned long long)h->names_size);
	size -= sizeof(*h);
	return h->nentries &&
			       size == h->nentries * sizeof(p->x->entries->file) +
					       h->nextents *
						       sizeof(p->x->extents->file) +
					       h->names_size
		       ? 0
		       : fail(p, "");
}

int pack_index_read(const struct source *src, struct pack_index *out,
		    struct errmsg *err)
{
	struct pack_index x = { 0 };
	struct parser p = {
		.name = src->name, .at = PACK_HEADER_SIZE, .x = &x, .err = err
	};
	int rc = read_header(src, &p.h, err);

	if (rc)
		return rc;
	rc = stream_open(&p.bytes, src, p.h.index_at, p.h.index_size, err) ?:
	     parse_head(&p)       ?:
	     parse_entries(&p)    ?:
	     parse_extents(&p)    ?:
	     check_tables(&p)     ?:
	     check_references(&p) ?:
	     parse_names(&p);
	if (!rc && stream_hash(&p.bytes) != p.h.index_hash)
		rc = fail(&p, "");
	stream_close(&p.bytes);
	if (rc)
		pack_index_done(&x);
	else
		*out = x;
	return rc;
}

void pack_index_done(struct pack_index *x)
{
	free(x->entries);
	free(x->extents);
	free(x->names);
	*x = (struct pack_index){ 0 };
}

void pack_index_put(const struct pack_index *x, struct bytebuf *out)
{
	struct index_head h = { x->nentries, x->nextents, 0 };
	const size_t head = out->len;

	bytebuf_add(out, &h, sizeof(h));
	for (uint32_t i = 0; i < x->nentries; i++) {
		struct pack_entry e = x->entries[i];

		e.name_at = h.names_size;
		e.name_len = (uint32_t)strlen(e.name);
		h.names_size += e.name_len + UINT64_C(1);
		bytebuf_add(out, e.file, sizeof(e.file));
	}
	for (uint32_t i = 0; i < x->nextents; i++)
		bytebuf_add(out, x->extents[i].file, sizeof(x->extents[i].file));
	for (uint32_t i = 0; i < x->nentries; i++)
		bytebuf_add(out, x->entries[i].name,
			    strlen(x->entries[i].name) + 1);
	if (!out->failed)
		memcpy(out->data + head, &h, sizeof(h));
}

static int fail_table(const struct source *src, uint32_t extent,
		      struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: table of extent %u is damaged",
			  src->name, extent);
}

int pack_table_read(const struct source *src, const struct pack_index *x,
		    uint32_t extent, struct pack_block **out, struct errmsg *err)
{
	const struct pack_extent *e = &x->extents[extent];
	const uint64_t n = pack_extent_blocks(e), end = e->at + e->stored;
	struct pack_block *v = NULL;
	uint64_t at = e->at;
	struct stream s;
	size_t cap = 0;
	int rc = stream_open(&s, src, e->table, n * PACK_TABLE_RECORD, err);

	for (uint64_t i = 0; !rc && i < n; i++) {
		uint8_t r[PACK_TABLE_RECORD];
		uint32_t len;

		rc = stream_take(&s, r, sizeof(r), err);
		if (rc)
			break;
		len = get_le32(r);
		if (!len || len > BLOCK_STORED_MAX || len > end - at) {
			rc = fail_table(src, extent, err);
		} else if (!array_reserve(&v, &cap, i + 2, sizeof(*v))) {
			rc = errmsg_nomem(err, src->name);
		} else {
			v[i] = (struct pack_block){ at, get_le64(r + 4) };
			at += len;
			v[i + 1].at = at;
		}
	}
	if (!rc && (at != end || stream_hash(&s) != e->table_hash))
		rc = fail_table(src, extent, err);
	stream_close(&s);
	if (rc)
		free(v);
	else
		*out = v;
	return rc;
}

int64_t pack_index_find(const struct pack_index *x, const char *name)
{
	const struct pack_entry *found =
		array_find(x->entries, x->nentries, sizeof(*found), name);

	return found ? found - x->entries : -1;
}

uint32_t pack_index_extent(const struct pack_index *x,
			   const struct pack_entry *e, uint64_t off)
{
	const struct pack_extent *v = x->extents + e->first;

	return e->first +
	       (uint32_t)interval_find(&v->start, e->n, sizeof(*v), off);
}

uint32_t pack_index_owner(const struct pack_index *x, uint32_t extent)
{
	const struct pack_entry *v = x->entries;

	/* Entries without extents begin where the next one does. */
	return (uint32_t)interval_find(&v->first, x->nentries, sizeof(*v),
				       extent);
}
