/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a pack, as ucpack(5) lays it out.
 *
 * Offsets that follow from the records before are checked against their sum, which
 * leaves no room for gaps and overlaps.  References lead to stored extents, so that
 * none can be circular.
 *
 * An index may claim any size.  Each record is checked when it has been read, before
 * there is memory for the next, and none that is valid is all zeros: so what an index
 * takes is a small multiple of what really is in the file, holes not counted.
 */
#include "ckpt/pack/pack_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/interval.h"
#include "ckpt/base/source.h"
#include "ckpt/pack/pack_hash.h"
#include "ckpt/pack/pack_stream.h"

#define HEAD_SIZE 24u
#define ENTRY_SIZE 64u
#define EXTENT_SIZE 48u
#define MODE_BITS (S_IFMT | 07777)
#define NS_PER_S 1000000000u

static int read_header(const struct source *src, struct pack_header *out,
		       struct errmsg *err)
{
	const char *const name = src->name;
	uint8_t bytes[PACK_HEADER_SIZE];
	struct pack_header h;
	int rc;

	if (src->size < sizeof(bytes))
		return errmsg_set(err, -EBADMSG, "%s: not a pack", name);
	rc = source_read_exact(src, bytes, sizeof(bytes), 0, err);
	if (rc)
		return rc;
	if (memcmp(bytes, PACK_MAGIC, 8) != 0)
		return errmsg_set(err, -EBADMSG, "%s: not a pack", name);
	if (get_le32(bytes + 8) != PACK_VERSION)
		return errmsg_set(err, -ENOTSUP,
				  "%s: a pack of version %u; this program reads"
				  " version %u: unpack it with the ucckpt that"
				  " packed it",
				  name, get_le32(bytes + 8), PACK_VERSION);
	h = (struct pack_header){
		.file_size = get_le64(bytes + 16),
		.index_at = get_le64(bytes + 24),
		.index_size = get_le64(bytes + 32),
		.index_hash = get_le64(bytes + 40),
	};
	if (XXH3_64bits(bytes, 48) != get_le64(bytes + 48) ||
	    get_le32(bytes + 12) != BLOCK_SIZE || h.index_at < PACK_HEADER_SIZE ||
	    !checked_range(h.index_at, h.index_size, h.file_size) ||
	    h.index_at + h.index_size != h.file_size)
		return errmsg_set(err, -EBADMSG, "%s: damaged header", name);
	if (h.file_size != src->size)
		return errmsg_set(err, -EBADMSG,
				  "%s: has %llu bytes instead of %llu", name,
				  (unsigned long long)src->size,
				  (unsigned long long)h.file_size);
	*out = h;
	return 0;
}

void pack_header_put(const struct pack_header *h, uint8_t out[PACK_HEADER_SIZE])
{
	memcpy(out, PACK_MAGIC, 8);
	put_le32(out + 8, PACK_VERSION);
	put_le32(out + 12, (uint32_t)BLOCK_SIZE);
	put_le64(out + 16, h->file_size);
	put_le64(out + 24, h->index_at);
	put_le64(out + 32, h->index_size);
	put_le64(out + 40, h->index_hash);
	put_le64(out + 48, XXH3_64bits(out, 48));
}

struct parser {
	const char *name;
	struct pack_header h;
	struct pack_stream bytes;
	uint64_t nentries, nextents, names_size; /* as the index says */
	uint64_t files_size;                     /* bytes of all files */
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

static int fail_entry(const struct parser *p, uint32_t i, const char *what)
{
	return errmsg_set(p->err, -EBADMSG, "%s: damaged index: entry %u: %s",
			  p->name, i, what);
}

static int fail_extent(const struct parser *p, uint32_t i, const char *what)
{
	return errmsg_set(p->err, -EBADMSG, "%s: damaged index: extent %u: %s",
			  p->name, i, what);
}

uint64_t pack_extent_blocks(const struct pack_extent *x)
{
	return x->len / BLOCK_SIZE + (x->len % BLOCK_SIZE != 0);
}

/* Are all components names of files, none of them "." or ".."? */
static bool is_relative(const char *name)
{
	while (*name) {
		const size_t n = strcspn(name, "/");

		if (n == 0 || (n == 1 && name[0] == '.') ||
		    (n == 2 && name[0] == '.' && name[1] == '.'))
			return false;
		name += n;
		if (*name == '/' && !*++name)
			return false;
	}
	return true;
}

/* Does the directory that it is in stand before it? */
static bool has_parent(const struct pack_index *x, uint32_t i)
{
	const char *const name = x->entries[i].name;
	const char *const slash = strrchr(name, '/');
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

/* `at` is where the name begins among the names, `first` the number of the entry's
 * first extent. */
static int parse_entry(struct parser *p, uint32_t i, uint64_t at, uint64_t first)
{
	struct pack_entry e = { .first = (uint32_t)first };
	const uint8_t *r;
	mode_t mode;
	int rc = pack_stream_next(&p->bytes, ENTRY_SIZE, &r, p->err);

	if (rc)
		return rc;
	e.name_len = get_le32(r + 8);
	mode = get_le32(r + 12);
	/* Whoever unpacks owns the files: other users' set-id bits must not
	 * come back as this user's. */
	e.mode = mode & (S_IFMT | 0777);
	e.mtime_s = (int64_t)get_le64(r + 16);
	e.mtime_ns = get_le32(r + 24);
	e.n = get_le32(r + 28);
	e.size = get_le64(r + 32);
	e.hash[0] = get_le64(r + 48);
	e.hash[1] = get_le64(r + 56);
	if (get_le64(r) != at || e.name_len >= PACK_NAME_MAX)
		return fail_entry(p, i, "no name");
	if ((mode & ~(mode_t)MODE_BITS) || !(S_ISDIR(mode) || S_ISREG(mode)) ||
	    e.mtime_ns >= NS_PER_S)
		return fail_entry(p, i, "neither a file nor a directory");
	if (get_le64(r + 40) != first)
		return fail_entry(p, i, "its extents are not there");
	if (S_ISDIR(mode) && (e.n || e.size))
		return fail_entry(p, i, "a directory with content");
	if ((e.n == 0) != (e.size == 0))
		return fail_entry(p, i, "its extents are not its size");
	if (e.size > PACK_BYTES_MAX - p->files_size)
		return fail_entry(p, i,
				  "files of more bytes than a pack can hold");
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

	for (uint32_t i = 0; i < p->nentries; i++) {
		const int rc = parse_entry(p, i, name, extent);

		if (rc)
			return rc;
		name += p->x->entries[i].name_len + UINT64_C(1);
		extent += p->x->entries[i].n;
	}
	return name == p->names_size && extent == p->nextents
		       ? 0
		       : fail(p, ": records that belong to no file");
}

/* Stored extents follow each other. */
static int parse_extent(struct parser *p, uint32_t i)
{
	struct pack_extent e = { .start = 0 };
	const uint8_t *r;
	const int rc = pack_stream_next(&p->bytes, EXTENT_SIZE, &r, p->err);

	if (rc)
		return rc;
	if (get_le32(r + 8) > PACK_ROUNDED || get_le32(r + 12) >= BLOCK_TYPES)
		return fail_extent(p, i, "of no known kind");
	e.start = get_le64(r);
	e.kind = (enum pack_kind)get_le32(r + 8);
	e.type = (enum block_type)get_le32(r + 12);
	if (e.kind == PACK_STORED) {
		e.at = get_le64(r + 16);
		e.stored = get_le64(r + 24);
		e.table = get_le64(r + 32);
		e.table_hash = get_le64(r + 40);
		if (e.at != p->at || e.stored == 0 ||
		    !checked_range(e.at, e.stored, p->h.index_at))
			return fail_extent(p, i, "its blocks are not there");
		p->at += e.stored;
	} else {
		if (get_le64(r + 16) >= p->nextents || get_le64(r + 32) ||
		    get_le64(r + 40))
			return fail_extent(p, i, "refers to nothing");
		e.target = (uint32_t)get_le64(r + 16);
		e.from = get_le64(r + 24);
	}
	if (!array_reserve(&p->x->extents, &p->extents_cap, i + 1, sizeof(e)))
		return errmsg_nomem(p->err, p->name);
	p->x->extents[i] = e;
	p->x->nextents = i + 1;
	return 0;
}

/* The extents of a file make it up from its beginning to its end. */
static int parse_file(struct parser *p, const struct pack_entry *e)
{
	const uint32_t first = (uint32_t)e->first, end = first + e->n;
	uint64_t from = 0;

	for (uint32_t i = first; i < end; i++) {
		const int rc = parse_extent(p, i);
		struct pack_extent *const x = p->x->extents + i;

		if (rc)
			return rc;
		if (x->start >= e->size ||
		    (i == first ? x->start != 0 : x->start <= from))
			return fail_extent(p, i, "out of order");
		if (i > first)
			x[-1].len = x->start - from;
		x->len = e->size - x->start; /* of the last one */
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
		const struct pack_extent *const e = &p->x->extents[i];
		const uint64_t size = pack_extent_blocks(e) * PACK_TABLE_RECORD;

		if (e->kind != PACK_STORED)
			continue;
		if (e->len % block_width(e->type))
			return fail_extent(p, i, "ends within an element");
		if (e->table != p->at ||
		    !checked_range(e->table, size, p->h.index_at))
			return fail_extent(p, i, "its table is not there");
		p->at += size;
	}
	return p->at == p->h.index_at
		       ? 0
		       : fail(p, ": bytes that belong to no file");
}

/* Is the source of a reference part of a stored extent? */
static bool has_source(const struct pack_index *x, const struct pack_extent *e)
{
	const struct pack_extent *const to = &x->extents[e->target];
	const unsigned scale = e->kind == PACK_ROUNDED ? 2 : 1;
	const bool half = e->type == BLOCK_F16 || e->type == BLOCK_BF16;

	return to->kind == PACK_STORED &&
	       checked_range(e->from, scale * e->len, to->len) &&
	       (scale == 1 ? e->type == BLOCK_BYTES : half && e->len % 2 == 0);
}

static int check_references(struct parser *p)
{
	const struct pack_index *const x = p->x;
	uint64_t references = 0;

	for (uint32_t i = 0; i < x->nextents; i++) {
		const struct pack_extent *const e = &x->extents[i];

		if (e->kind == PACK_STORED)
			continue;
		if (!has_source(x, e))
			return fail_extent(p, i, "refers to nothing");
		if (e->kind == PACK_ROUNDED &&
		    (x->extents[e->target].type != BLOCK_F32 || e->from % 4))
			return fail_extent(p, i, "rounds what is no float");
		references += e->len;
	}
	if (references / PACK_REFERENCES_MAX > p->files_size - references)
		return errmsg_set(
			p->err, -E2BIG,
			"%s: claims copies of %llu bytes, but stores"
			" only %llu to copy",
			p->name, (unsigned long long)references,
			(unsigned long long)(p->files_size - references));
	return 0;
}

static int check_name(const struct parser *p, uint32_t i)
{
	const struct pack_entry *const e = &p->x->entries[i];

	if (strlen(e->name) != e->name_len)
		return fail_entry(p, i, "no name");
	if ((i == 0) != (e->name_len == 0) || !is_relative(e->name))
		return fail_entry(p, i, "a name that no file can have");
	if (i > 0 && strcmp(e[-1].name, e->name) >= 0)
		return fail_entry(p, i, "out of order");
	if (i == 0 ? !S_ISDIR(e->mode) : !has_parent(p->x, i))
		return fail_entry(p, i, "not in a directory");
	return 0;
}

static int parse_names(struct parser *p)
{
	char *to = malloc(p->names_size);
	int rc = to ? 0 : errmsg_nomem(p->err, p->name);

	p->x->names = to;
	for (uint32_t i = 0; !rc && i < p->x->nentries; i++) {
		const size_t n = p->x->entries[i].name_len + (size_t)1;
		const uint8_t *name;

		rc = pack_stream_next(&p->bytes, n, &name, p->err);
		if (rc)
			break;
		memcpy(to, name, n);
		if (to[n - 1])
			return fail_entry(p, i, "no name");
		p->x->entries[i].name = to;
		to += n;
		rc = check_name(p, i);
	}
	return rc;
}

static int parse_head(struct parser *p)
{
	const uint8_t *r;
	uint64_t size = p->h.index_size;
	int rc;

	if (size < HEAD_SIZE)
		return fail(p, "");
	rc = pack_stream_next(&p->bytes, HEAD_SIZE, &r, p->err);
	if (rc)
		return rc;
	p->nentries = get_le64(r);
	p->nextents = get_le64(r + 8);
	p->names_size = get_le64(r + 16);
	if (p->nentries > PACK_ENTRIES_MAX || p->nextents > PACK_EXTENTS_MAX ||
	    p->names_size > PACK_NAMES_MAX)
		return errmsg_set(p->err, -E2BIG,
				  "%s: an index of %llu files and %llu extents,"
				  " and names of %llu bytes",
				  p->name, (unsigned long long)p->nentries,
				  (unsigned long long)p->nextents,
				  (unsigned long long)p->names_size);
	size -= HEAD_SIZE;
	return p->nentries && size == p->nentries * ENTRY_SIZE +
					       p->nextents * EXTENT_SIZE +
					       p->names_size
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
	rc = pack_stream_open(&p.bytes, src, p.h.index_at, p.h.index_size, err) ?:
	     parse_head(&p)       ?:
	     parse_entries(&p)    ?:
	     parse_extents(&p)    ?:
	     check_tables(&p)     ?:
	     check_references(&p) ?:
	     parse_names(&p);
	if (!rc && pack_stream_hash(&p.bytes) != p.h.index_hash)
		rc = fail(&p, "");
	pack_stream_close(&p.bytes);
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

static void put_entry(const struct pack_entry *e, uint64_t name,
		      struct bytebuf *out)
{
	bytebuf_add_le64(out, name);
	bytebuf_add_le32(out, (uint32_t)strlen(e->name));
	bytebuf_add_le32(out, (uint32_t)e->mode);
	bytebuf_add_le64(out, (uint64_t)e->mtime_s);
	bytebuf_add_le32(out, e->mtime_ns);
	bytebuf_add_le32(out, e->n);
	bytebuf_add_le64(out, e->size);
	bytebuf_add_le64(out, e->first);
	bytebuf_add_le64(out, e->hash[0]);
	bytebuf_add_le64(out, e->hash[1]);
}

static void put_extent(const struct pack_extent *e, struct bytebuf *out)
{
	const bool stored = e->kind == PACK_STORED;

	bytebuf_add_le64(out, e->start);
	bytebuf_add_le32(out, (uint32_t)e->kind);
	bytebuf_add_le32(out, (uint32_t)e->type);
	bytebuf_add_le64(out, stored ? e->at : e->target);
	bytebuf_add_le64(out, stored ? e->stored : e->from);
	bytebuf_add_le64(out, stored ? e->table : 0);
	bytebuf_add_le64(out, stored ? e->table_hash : 0);
}

void pack_index_put(const struct pack_index *x, struct bytebuf *out)
{
	uint64_t names = 0;

	for (uint32_t i = 0; i < x->nentries; i++)
		names += strlen(x->entries[i].name) + 1;
	bytebuf_add_le64(out, x->nentries);
	bytebuf_add_le64(out, x->nextents);
	bytebuf_add_le64(out, names);
	names = 0;
	for (uint32_t i = 0; i < x->nentries; i++) {
		put_entry(&x->entries[i], names, out);
		names += strlen(x->entries[i].name) + 1;
	}
	for (uint32_t i = 0; i < x->nextents; i++)
		put_extent(&x->extents[i], out);
	for (uint32_t i = 0; i < x->nentries; i++)
		bytebuf_add(out, x->entries[i].name,
			    strlen(x->entries[i].name) + 1);
}

int64_t pack_index_find(const struct pack_index *x, const char *name)
{
	const struct pack_entry *const found =
		array_find(x->entries, x->nentries, sizeof(*found), name);

	return found ? found - x->entries : -1;
}

uint32_t pack_index_extent(const struct pack_index *x,
			   const struct pack_entry *e, uint64_t off)
{
	const struct pack_extent *const v = x->extents + e->first;

	return e->first +
	       (uint32_t)interval_find(&v->start, e->n, sizeof(*v), off);
}

uint32_t pack_index_owner(const struct pack_index *x, uint32_t extent)
{
	const struct pack_entry *const v = x->entries;

	/* Entries without extents begin where the next one does. */
	return (uint32_t)interval_find(&v->first, x->nentries, sizeof(*v),
				       extent);
}
