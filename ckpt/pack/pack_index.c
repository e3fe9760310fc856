/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a pack, as ucpack(5) lays it out.
 *
 * Records have fixed sizes and say everything that a reader needs to find one
 * block, so that an index can be mapped and searched where it is.  Offsets that
 * follow from the records before are there for that reason only: they are
 * checked against their sum, which leaves no room for gaps and overlaps.
 * References lead to stored extents, so that none can be circular.
 */
#include "ckpt/pack/pack_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_hash.h"

#define HEAD_SIZE 24u
#define ENTRY_SIZE 64u
#define EXTENT_SIZE 48u
#define MODE_BITS (S_IFMT | 07777)
#define NS_PER_S 1000000000u

/* --- header ---------------------------------------------------------------- */

int pack_header_parse(const uint8_t bytes[PACK_HEADER_SIZE], const char *name,
		      uint64_t size, struct pack_header *out, struct errmsg *err)
{
	const struct pack_header h = {
		.file_size = get_le64(bytes + 16),
		.index_at = get_le64(bytes + 24),
		.index_size = get_le64(bytes + 32),
		.index_hash = get_le64(bytes + 40),
	};

	if (memcmp(bytes, PACK_MAGIC, 8) != 0)
		return errmsg_set(err, -EBADMSG, "%s: not a pack", name);
	if (get_le32(bytes + 8) != PACK_VERSION)
		return errmsg_set(err, -ENOTSUP,
				  "%s: a pack of version %u; this program reads"
				  " version %u",
				  name, get_le32(bytes + 8), PACK_VERSION);
	if (XXH3_64bits(bytes, 48) != get_le64(bytes + 48) ||
	    get_le32(bytes + 12) != BLOCK_SIZE)
		return errmsg_set(err, -EBADMSG, "%s: damaged header", name);
	if (h.file_size != size)
		return errmsg_set(err, -EBADMSG,
				  "%s: has %llu bytes instead of %llu", name,
				  (unsigned long long)size,
				  (unsigned long long)h.file_size);
	if (h.index_at < PACK_HEADER_SIZE ||
	    !checked_range(h.index_at, h.index_size, size) ||
	    h.index_at + h.index_size != size)
		return errmsg_set(err, -EBADMSG, "%s: damaged header", name);
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

/* --- reading --------------------------------------------------------------- */

struct parser {
	const char *name;
	const uint8_t *entries, *extents;
	uint64_t names_size;
	struct pack_index *x;
	struct errmsg *err;
};

static int fail_entry(const struct parser *p, uint64_t i, const char *what)
{
	return errmsg_set(p->err, -EBADMSG, "%s: damaged index: entry %llu: %s",
			  p->name, (unsigned long long)i, what);
}

static int fail_extent(const struct parser *p, uint64_t i, const char *what)
{
	return errmsg_set(p->err, -EBADMSG, "%s: damaged index: extent %llu: %s",
			  p->name, (unsigned long long)i, what);
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

static int parse_name(struct parser *p, uint32_t i, uint64_t at, uint64_t *end)
{
	struct pack_index *const x = p->x;
	const uint8_t *const r = p->entries + (uint64_t)i * ENTRY_SIZE;
	const uint64_t len = get_le32(r + 8);
	const char *const name = x->names + at;

	if (get_le64(r) != at || len >= PACK_NAME_MAX ||
	    !checked_range(at, len + 1, p->names_size) ||
	    strnlen(name, len + 1) != len)
		return fail_entry(p, i, "no name");
	x->entries[i].name = name;
	*end = at + len + 1;
	if ((i == 0) != (len == 0) || !is_relative(name))
		return fail_entry(p, i, "a name that no file can have");
	if (i > 0 && strcmp(x->entries[i - 1].name, name) >= 0)
		return fail_entry(p, i, "out of order");
	return 0;
}

static int parse_entry(struct parser *p, uint32_t i, uint64_t first)
{
	const uint8_t *const r = p->entries + (uint64_t)i * ENTRY_SIZE;
	struct pack_entry *const e = &p->x->entries[i];

	const mode_t mode = get_le32(r + 12);

	/* Whoever unpacks owns the files: other users' set-id bits must not
	 * come back as this user's. */
	e->mode = mode & (S_IFMT | 0777);
	e->mtime_s = (int64_t)get_le64(r + 16);
	e->mtime_ns = get_le32(r + 24);
	e->n = get_le32(r + 28);
	e->size = get_le64(r + 32);
	e->first = (uint32_t)first;
	e->hash[0] = get_le64(r + 48);
	e->hash[1] = get_le64(r + 56);
	if ((mode & ~(mode_t)MODE_BITS) ||
	    !(S_ISDIR(e->mode) || S_ISREG(e->mode)) || e->mtime_ns >= NS_PER_S)
		return fail_entry(p, i, "neither a file nor a directory");
	if (get_le64(r + 40) != first || e->n > p->x->nextents - first)
		return fail_entry(p, i, "its extents are not there");
	if (S_ISDIR(e->mode) && (e->n || e->size))
		return fail_entry(p, i, "a directory with content");
	if (e->size > INT64_MAX || (e->n == 0) != (e->size == 0))
		return fail_entry(p, i, "its extents are not its size");
	if (i == 0 ? !S_ISDIR(e->mode) : !has_parent(p->x, i))
		return fail_entry(p, i, "not in a directory");
	return 0;
}

/* The extents of a file, which make it up from its beginning to its end. */
static int parse_file(struct parser *p, const struct pack_entry *e)
{
	for (uint32_t i = e->first; i < e->first + e->n; i++) {
		const uint8_t *const r = p->extents + (uint64_t)i * EXTENT_SIZE;
		const bool last = i + 1 == e->first + e->n;
		const uint64_t start = get_le64(r);
		const uint64_t end = last ? e->size : get_le64(r + EXTENT_SIZE);

		if ((i == e->first && start != 0) || end <= start ||
		    end > e->size)
			return fail_extent(p, i, "out of order");
		if (get_le32(r + 8) > PACK_ROUNDED ||
		    get_le32(r + 12) >= BLOCK_TYPES)
			return fail_extent(p, i, "of no known kind");
		p->x->extents[i] = (struct pack_extent){
			.start = start,
			.len = end - start,
			.kind = (enum pack_kind)get_le32(r + 8),
			.type = (enum block_type)get_le32(r + 12),
		};
	}
	return 0;
}

/* Blocks, then tables, each in order, fill the pack up to the index. */
static int parse_stored(struct parser *p, const struct pack_header *h)
{
	uint64_t at = PACK_HEADER_SIZE, table;

	for (uint32_t i = 0; i < p->x->nextents; i++) {
		struct pack_extent *const e = &p->x->extents[i];
		const uint8_t *const r = p->extents + (uint64_t)i * EXTENT_SIZE;

		if (e->kind != PACK_STORED)
			continue;
		e->at = get_le64(r + 16);
		e->stored = get_le64(r + 24);
		e->table_hash = get_le64(r + 40);
		if (e->at != at || e->stored == 0 ||
		    !checked_range(at, e->stored, h->index_at))
			return fail_extent(p, i, "its blocks are not there");
		if (e->len % block_width(e->type))
			return fail_extent(p, i, "ends within an element");
		at += e->stored;
	}
	table = at;
	for (uint32_t i = 0; i < p->x->nextents; i++) {
		struct pack_extent *const e = &p->x->extents[i];
		const uint8_t *const r = p->extents + (uint64_t)i * EXTENT_SIZE;
		uint64_t size;

		if (e->kind != PACK_STORED)
			continue;
		e->table = get_le64(r + 32);
		if (e->table != table ||
		    !checked_mul(pack_extent_blocks(e), PACK_TABLE_RECORD,
				 &size) ||
		    !checked_range(table, size, h->index_at))
			return fail_extent(p, i, "its table is not there");
		table += size;
	}
	if (table != h->index_at)
		return errmsg_set(p->err, -EBADMSG,
				  "%s: damaged index: bytes that belong to no file",
				  p->name);
	return 0;
}

/* Bytes of the source of an extent that refers to another. */
static bool source_len(const struct pack_extent *e, uint64_t *len)
{
	if (e->kind == PACK_COPY) {
		*len = e->len;
		return e->type == BLOCK_BYTES;
	}
	return (e->type == BLOCK_F16 || e->type == BLOCK_BF16) &&
	       e->len % 2 == 0 && checked_mul(e->len, 2, len);
}

static int parse_references(struct parser *p)
{
	for (uint32_t i = 0; i < p->x->nextents; i++) {
		struct pack_extent *const e = &p->x->extents[i];
		const uint8_t *const r = p->extents + (uint64_t)i * EXTENT_SIZE;
		const uint64_t target = get_le64(r + 16);
		const struct pack_extent *const to =
			target < p->x->nextents ? &p->x->extents[target] : NULL;
		uint64_t len;

		if (e->kind == PACK_STORED)
			continue;
		e->target = (uint32_t)target;
		e->from = get_le64(r + 24);
		if (!to || to->kind != PACK_STORED || !source_len(e, &len) ||
		    !checked_range(e->from, len, to->len) || get_le64(r + 32) ||
		    get_le64(r + 40))
			return fail_extent(p, i, "refers to nothing");
		if (e->kind == PACK_ROUNDED &&
		    (to->type != BLOCK_F32 || e->from % 4))
			return fail_extent(p, i, "rounds what is no float");
	}
	return 0;
}

static int parse_all(struct parser *p, const struct pack_header *h)
{
	struct pack_index *const x = p->x;
	uint64_t name = 0, extent = 0;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < x->nentries; i++) {
		rc = parse_name(p, i, name, &name);
		if (!rc)
			rc = parse_entry(p, i, extent);
		if (!rc)
			rc = parse_file(p, &x->entries[i]);
		extent += x->entries[i].n;
	}
	if (rc)
		return rc;
	if (name != p->names_size || extent != x->nextents)
		return errmsg_set(p->err, -EBADMSG,
				  "%s: damaged index: records that belong to no file",
				  p->name);
	rc = parse_stored(p, h);
	return rc ? rc : parse_references(p);
}

int pack_index_parse(struct span bytes, const char *name,
		     const struct pack_header *h, struct pack_index *out,
		     struct errmsg *err)
{
	struct pack_index x = { 0 };
	struct parser p = { .name = name, .x = &x, .err = err };
	const bool headed = bytes.len >= HEAD_SIZE;
	const uint64_t entries = headed ? get_le64(bytes.p) : 0;
	const uint64_t extents = headed ? get_le64(bytes.p + 8) : 0;
	int rc;

	if (entries > PACK_ENTRIES_MAX || extents > PACK_EXTENTS_MAX)
		return errmsg_set(err, -E2BIG,
				  "%s: an index of %llu files and %llu extents",
				  name, (unsigned long long)entries,
				  (unsigned long long)extents);
	p.names_size = headed ? get_le64(bytes.p + 16) : 0;
	if (entries == 0 || XXH3_64bits(bytes.p, bytes.len) != h->index_hash ||
	    bytes.len - HEAD_SIZE < entries * ENTRY_SIZE + extents * EXTENT_SIZE ||
	    bytes.len - HEAD_SIZE - entries * ENTRY_SIZE - extents * EXTENT_SIZE !=
		    p.names_size)
		return errmsg_set(err, -EBADMSG, "%s: damaged index", name);
	p.entries = bytes.p + HEAD_SIZE;
	p.extents = p.entries + entries * ENTRY_SIZE;
	x.nentries = (uint32_t)entries;
	x.nextents = (uint32_t)extents;
	x.entries = calloc(entries, sizeof(*x.entries));
	x.extents = calloc(extents + 1, sizeof(*x.extents));
	x.names = malloc(p.names_size + 1);
	if (x.entries && x.extents && x.names) {
		memcpy(x.names, p.extents + extents * EXTENT_SIZE, p.names_size);
		rc = parse_all(&p, h);
	} else {
		rc = errmsg_nomem(err, name);
	}
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

/* --- writing --------------------------------------------------------------- */

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

/* --- finding --------------------------------------------------------------- */

int64_t pack_index_find(const struct pack_index *x, const char *name)
{
	uint32_t low = 0, high = x->nentries;

	while (low < high) {
		const uint32_t mid = low + (high - low) / 2;
		const int order = strcmp(x->entries[mid].name, name);

		if (order == 0)
			return mid;
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return -1;
}

uint32_t pack_index_extent(const struct pack_index *x,
			   const struct pack_entry *e, uint64_t off)
{
	uint32_t low = e->first, high = e->first + e->n;

	while (high - low > 1) {
		const uint32_t mid = low + (high - low) / 2;

		if (x->extents[mid].start <= off)
			low = mid;
		else
			high = mid;
	}
	return low;
}
