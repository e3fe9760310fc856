/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `.metadata` of a PyTorch distributed checkpoint: a pickle of a
 *
 *   Metadata
 *     state_dict_metadata  {key: TensorStorageMetadata or BytesStorageMetadata}
 *     planner_data	    {key: path}
 *     storage_data	    {MetadataIndex(key, offset, index): _StorageInfo}
 *     storage_meta	    None
 *
 * (torch/distributed/checkpoint/metadata.py, filesystem.py).  A large model has a million
 * chunks, each with an object of its own, so the pickle is written directly, without a
 * tree of values.  Fields that torch 2.4 does not know are left out; newer versions do not
 * need them.
 */
#include "ckpt/plan/dcpview_metadata.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/hashtab.h"
#include "ckpt/dcp/metadata.h"
#include "ckpt/plan/dcpview_layout.h"

#define METADATA "torch.distributed.checkpoint.metadata"

/* Opcodes of protocol 2. */
enum {
	OP_MARK = '(',
	OP_EMPTY_TUPLE = ')',
	OP_STOP = '.',
	OP_BININT = 'J',
	OP_BININT1 = 'K',
	OP_BININT2 = 'M',
	OP_NONE = 'N',
	OP_REDUCE = 'R',
	OP_BINUNICODE = 'X',
	OP_EMPTY_LIST = ']',
	OP_APPEND = 'a',
	OP_BUILD = 'b',
	OP_GLOBAL = 'c',
	OP_BINGET = 'h',
	OP_LONG_BINGET = 'j',
	OP_LONG_BINPUT = 'r',
	OP_SETITEM = 's',
	OP_TUPLE = 't',
	OP_SETITEMS = 'u',
	OP_EMPTY_DICT = '}',
	OP_PROTO = 0x80,
	OP_NEWOBJ = 0x81,
	OP_TUPLE1 = 0x85,
	OP_NEWFALSE = 0x89,
	OP_LONG1 = 0x8a,
};

/* Memo numbers: these constants, then the TensorProperties of each dtype, then the key
 * and the file name of each entry. */
enum constant {
	C_TENSOR,
	C_CHUNK,
	C_BYTES,
	C_INDEX,
	C_INFO,
	C_SIZE,
	C_PROPERTIES,
	C_SIZE_TEXT,
	C_CHUNKS,
	C_OFFSETS,
	C_SIZES,
	C_FQN,
	C_OFFSET,
	C_INDEX_TEXT,
	C_FILE,
	C_LENGTH,
	C_COUNT
};

static const struct {
	const char *module; /* NULL: a text */
	const char *name;
} constants[C_COUNT] = {
	[C_TENSOR] = { METADATA, "TensorStorageMetadata" },
	[C_CHUNK] = { METADATA, "ChunkStorageMetadata" },
	[C_BYTES] = { METADATA, "BytesStorageMetadata" },
	[C_INDEX] = { METADATA, "MetadataIndex" },
	[C_INFO] = { "torch.distributed.checkpoint.filesystem", "_StorageInfo" },
	[C_SIZE] = { "torch", "Size" },
	[C_PROPERTIES] = { NULL, "properties" },
	[C_SIZE_TEXT] = { NULL, "size" },
	[C_CHUNKS] = { NULL, "chunks" },
	[C_OFFSETS] = { NULL, "offsets" },
	[C_SIZES] = { NULL, "sizes" },
	[C_FQN] = { NULL, "fqn" },
	[C_OFFSET] = { NULL, "offset" },
	[C_INDEX_TEXT] = { NULL, "index" },
	[C_FILE] = { NULL, "relative_path" },
	[C_LENGTH] = { NULL, "length" },
};

#define MEMO_PROPERTIES C_COUNT
#define MEMO_ENTRIES 64 /* above those of all dtypes */

/* The blob length of a chunk shape. */
struct blob_len {
	enum dtype dtype;
	unsigned ndim;
	uint64_t rows;
	const uint64_t *shape; /* all dimensions but the first */
	uint64_t len;
};

struct writer {
	struct bytebuf *out;
	struct errmsg *err;
	int rc;
	uint64_t known; /* bit i: number i is in the memo */
	uint8_t room[512]; /* bytes not yet appended to `out`, to append many at once */
	size_t used;
	struct hashtab index;
	struct blob_len *lengths;
	size_t n, cap;
};

static void flush(struct writer *w)
{
	bytebuf_add(w->out, w->room, w->used);
	w->used = 0;
}

static void op(struct writer *w, uint8_t code)
{
	if (w->used == sizeof(w->room))
		flush(w);
	w->room[w->used++] = code;
}

/* Append the low `bytes` bytes of `v`, little-endian. */
static void put_le(struct writer *w, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		op(w, (uint8_t)(v >> 8 * i));
}

static void put_bytes(struct writer *w, const char *p, size_t len)
{
	flush(w);
	bytebuf_add(w->out, p, len);
}

static void put_int(struct writer *w, uint64_t i)
{
	if (i <= UINT8_MAX) {
		op(w, OP_BININT1);
		put_le(w, i, 1);
	} else if (i <= UINT16_MAX) {
		op(w, OP_BININT2);
		put_le(w, i, 2);
	} else if (i <= INT32_MAX) {
		op(w, OP_BININT);
		put_le(w, i, 4);
	} else { /* all are below 2^63 */
		op(w, OP_LONG1);
		op(w, 8);
		put_le(w, i, 8);
	}
}

static void put_text(struct writer *w, const char *text)
{
	const size_t len = strlen(text);

	op(w, OP_BINUNICODE);
	put_le(w, len, 4);
	put_bytes(w, text, len);
}

static void put_global(struct writer *w, const char *module, const char *name)
{
	op(w, OP_GLOBAL);
	put_bytes(w, module, strlen(module));
	op(w, '\n');
	put_bytes(w, name, strlen(name));
	op(w, '\n');
}

/* Memoise the top of the stack as number `i`. */
static void memo_set(struct writer *w, size_t i)
{
	op(w, OP_LONG_BINPUT);
	put_le(w, i, 4);
}

static void memo_get(struct writer *w, size_t i)
{
	if (i <= UINT8_MAX) {
		op(w, OP_BINGET);
		op(w, (uint8_t)i);
	} else {
		op(w, OP_LONG_BINGET);
		put_le(w, i, 4);
	}
}

/* Return whether number `i` is in the memo, and mark it as present: the caller adds it. */
static bool is_known(struct writer *w, size_t i)
{
	const bool known = w->known & UINT64_C(1) << i;

	w->known |= UINT64_C(1) << i;
	return known;
}

static void put(struct writer *w, enum constant c)
{
	if (is_known(w, c)) {
		memo_get(w, c);
		return;
	}
	if (constants[c].module)
		put_global(w, constants[c].module, constants[c].name);
	else
		put_text(w, constants[c].name);
	memo_set(w, c);
}

/* Create an instance of a class and open the dict of its attributes. */
static void begin(struct writer *w, enum constant class)
{
	put(w, class);
	op(w, OP_EMPTY_TUPLE);
	op(w, OP_NEWOBJ);
	op(w, OP_EMPTY_DICT);
	op(w, OP_MARK);
}

static void end(struct writer *w)
{
	op(w, OP_SETITEMS);
	op(w, OP_BUILD);
}

/* Put a torch.Size: `first`, then shape[1..], or zeros if `shape` is NULL. */
static void put_size(struct writer *w, unsigned ndim, uint64_t first,
		     const uint64_t *shape)
{
	put(w, C_SIZE);
	op(w, OP_MARK);
	for (unsigned i = 0; i < ndim; i++)
		put_int(w, i == 0 ? first : shape ? shape[i] : 0);
	op(w, OP_TUPLE);
	op(w, OP_TUPLE1);
	op(w, OP_REDUCE);
}

/* The state of TensorProperties is a tuple: dtype, layout, requires_grad, memory format,
 * pin_memory. */
static void put_properties(struct writer *w, enum dtype dtype)
{
	if (is_known(w, MEMO_PROPERTIES + dtype)) {
		memo_get(w, MEMO_PROPERTIES + dtype);
		return;
	}
	put_global(w, METADATA, "TensorProperties");
	op(w, OP_EMPTY_TUPLE);
	op(w, OP_NEWOBJ);
	op(w, OP_MARK);
	put_global(w, "torch", dtype_name(dtype));
	put_global(w, "torch.serialization", "_get_layout");
	put_text(w, "torch.strided");
	op(w, OP_TUPLE1);
	op(w, OP_REDUCE);
	op(w, OP_NEWFALSE);
	put_global(w, METADATA, "_MEM_FORMAT_ENCODING");
	put_int(w, 0);
	op(w, OP_TUPLE1);
	op(w, OP_REDUCE);
	op(w, OP_NEWFALSE);
	op(w, OP_TUPLE);
	op(w, OP_BUILD);
	memo_set(w, MEMO_PROPERTIES + dtype);
}

static uint64_t rows_of(const struct dcpview_entry *e)
{
	return e->ndim ? e->shape[0] : 1;
}

static void put_tensor(struct writer *w, const struct dcpview_entry *e,
		       unsigned ranks)
{
	const struct dcpview_cut cut =
		dcpview_cut(e->dtype, e->shape, e->ndim, ranks);
	uint64_t row = 0, next;

	begin(w, C_TENSOR);
	put(w, C_PROPERTIES);
	put_properties(w, e->dtype);
	put(w, C_SIZE_TEXT);
	put_size(w, e->ndim, rows_of(e), e->shape);
	put(w, C_CHUNKS);
	op(w, OP_EMPTY_LIST);
	do {
		next = dcpview_cut_end(&cut, row);
		begin(w, C_CHUNK);
		put(w, C_OFFSETS);
		put_size(w, e->ndim, row, NULL);
		put(w, C_SIZES);
		put_size(w, e->ndim, next - row, e->shape);
		end(w);
		op(w, OP_APPEND);
		row = next;
	} while (row < cut.rows);
	end(w);
}

static bool is_alike(const struct blob_len *b, const struct dcpview_entry *e,
		     uint64_t rows)
{
	return b->dtype == e->dtype && b->ndim == e->ndim && b->rows == rows &&
	       (e->ndim < 2 || memcmp(b->shape + 1, e->shape + 1,
				      (e->ndim - 1) * sizeof(*e->shape)) == 0);
}

/* Return the blob length of a chunk of `rows` rows, or 0 after an error.  Lengths are
 * cached by shape. */
static uint64_t get_length(struct writer *w, const struct dcpview_entry *e,
			   uint64_t rows)
{
	const uint64_t hash =
		hash_number(rows ^ (e->ndim > 1 ? hash_number(e->shape[1]) : 0));
	uint64_t shape[TENSOR_DIMS_MAX];
	struct ptwrite layout;
	size_t pos = 0;
	uint32_t i;

	while (hashtab_next(&w->index, hash, &pos, &i))
		if (is_alike(&w->lengths[i], e, rows))
			return w->lengths[i].len;
	if (e->ndim)
		memcpy(shape, e->shape, e->ndim * sizeof(*shape));
	shape[0] = rows;
	w->rc = w->rc
			?: dcpview_blob_init(&layout, e->dtype, shape, e->ndim,
					     w->err);
	if (w->rc)
		return 0;
	if (!array_reserve(&w->lengths, &w->cap, w->n + 1, sizeof(*w->lengths)) ||
	    !hashtab_add(&w->index, hash, (uint32_t)w->n))
		w->rc = errmsg_nomem(w->err, NULL);
	else
		w->lengths[w->n++] = (struct blob_len){
			.dtype = e->dtype,
			.ndim = e->ndim,
			.rows = rows,
			.shape = e->shape,
			.len = layout.size,
		};
	ptwrite_done(&layout);
	return w->rc ? 0 : w->lengths[w->n - 1].len;
}

/* Begin a MetadataIndex; the caller puts the offset and the index. */
static void begin_index(struct writer *w, size_t key)
{
	begin(w, C_INDEX);
	put(w, C_FQN);
	memo_get(w, MEMO_ENTRIES + 2 * key);
	put(w, C_OFFSET);
}

static void put_info(struct writer *w, const struct dcpview_entry *e,
		     size_t key, uint64_t offset, uint64_t len)
{
	begin(w, C_INFO);
	put(w, C_FILE);
	if (offset == e->offset) {
		put_text(w, e->file);
		memo_set(w, MEMO_ENTRIES + 2 * key + 1);
	} else {
		memo_get(w, MEMO_ENTRIES + 2 * key + 1);
	}
	put(w, C_OFFSET);
	put_int(w, offset);
	put(w, C_LENGTH);
	put_int(w, len);
	end(w);
	op(w, OP_SETITEM);
}

static void put_places(struct writer *w, const struct dcpview_entry *e,
		       size_t key, unsigned ranks)
{
	const struct dcpview_cut cut =
		dcpview_cut(e->dtype, e->shape, e->ndim, ranks);
	uint64_t at = e->offset, row = 0;

	for (size_t i = 0; !w->rc && (row < cut.rows || i == 0); i++) {
		const uint64_t next = dcpview_cut_end(&cut, row);
		const uint64_t len = get_length(w, e, next - row);

		begin_index(w, key);
		put_size(w, e->ndim, row, NULL);
		put(w, C_INDEX_TEXT);
		put_int(w, i);
		end(w);
		put_info(w, e, key, at, len);
		at += len;
		row = next;
	}
}

static void put_path(struct writer *w, const struct dcpview_entry *e)
{
	op(w, OP_MARK);
	for (unsigned i = 0; i < e->nsteps; i++)
		if (e->path[i].text)
			put_text(w, e->path[i].text);
		else
			put_int(w, e->path[i].i);
	op(w, OP_TUPLE);
}

/* Put the attributes of Metadata. */
static void put_entries(struct writer *w, const struct dcpview_entry *v,
			size_t n, unsigned ranks)
{
	put_text(w, "state_dict_metadata");
	op(w, OP_EMPTY_DICT);
	for (size_t i = 0; i < n; i++) {
		put_text(w, v[i].key);
		memo_set(w, MEMO_ENTRIES + 2 * i);
		if (v[i].is_tensor) {
			put_tensor(w, &v[i], ranks);
		} else {
			put(w, C_BYTES);
			op(w, OP_EMPTY_TUPLE);
			op(w, OP_NEWOBJ);
		}
		op(w, OP_SETITEM);
	}
	put_text(w, "planner_data");
	op(w, OP_EMPTY_DICT);
	for (size_t i = 0; i < n; i++) {
		memo_get(w, MEMO_ENTRIES + 2 * i);
		put_path(w, &v[i]);
		op(w, OP_SETITEM);
	}
	put_text(w, "storage_data");
	op(w, OP_EMPTY_DICT);
	for (size_t i = 0; i < n; i++) {
		if (v[i].is_tensor) {
			put_places(w, &v[i], i, ranks);
			continue;
		}
		begin_index(w, i);
		op(w, OP_NONE);
		put(w, C_INDEX_TEXT);
		op(w, OP_NONE);
		end(w);
		put_info(w, &v[i], i, v[i].offset, v[i].len);
	}
	put_text(w, "storage_meta");
	op(w, OP_NONE);
}

int dcpview_metadata_write(const struct dcpview_entry *v, size_t n,
			   unsigned ranks, struct bytebuf *out,
			   struct errmsg *err)
{
	struct writer w = { .out = out, .err = err };

	op(&w, OP_PROTO);
	op(&w, 2);
	put_global(&w, METADATA, "Metadata");
	op(&w, OP_EMPTY_TUPLE);
	op(&w, OP_NEWOBJ);
	op(&w, OP_EMPTY_DICT);
	op(&w, OP_MARK);
	put_entries(&w, v, n, ranks);
	end(&w);
	op(&w, OP_STOP);
	flush(&w);
	hashtab_done(&w.index);
	free(w.lengths);
	return w.rc || !out->failed ? w.rc : errmsg_nomem(err, DCP_METADATA);
}
