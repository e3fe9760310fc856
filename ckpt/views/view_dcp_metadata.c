/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `.metadata` of a PyTorch distributed checkpoint (torch/distributed/checkpoint/metadata.py,
 * filesystem.py): a pickle of
 *
 *   Metadata(state_dict_metadata, planner_data, storage_data)
 *     state_dict_metadata  {key: TensorStorageMetadata(properties, size, chunks)
 *			          or BytesStorageMetadata()}
 *       chunks             [ChunkStorageMetadata(offsets, sizes)]
 *     planner_data	    {key: path}
 *     storage_data	    {MetadataIndex(key, offsets):
 *			     _StorageInfo(relative_path, offset, length)}
 *
 * A large model has a million chunks, each with objects of its own, so the pickle is written
 * directly, without a tree of values.  torch pickles the attributes of these objects; calls of
 * their classes are half as long, take half the time to read, and also set attributes that newer
 * versions of torch have added.
 */
#include "ckpt/views/view_dcp_metadata.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"
#include "ckpt/format/legacy.h"
#include "ckpt/format/pickle.h"

#define MODULE "torch.distributed.checkpoint."

/* Opcodes of protocol 4. */
#define PROTO "\x80\x04"
#define STOP "."
#define GLOBAL "c"
#define EMPTY_DICT "}"
#define EMPTY_LIST "]"
#define EMPTY_TUPLE ")"
#define MARK "("
#define TUPLE "t" /* from the values since the last mark */
#define TUPLE1 "\x85"
#define TUPLE2 "\x86"
#define REDUCE "R"
#define SETITEM "s"
#define APPENDS "e" /* with the values since the last mark */
#define POP "0"
#define MEMOIZE "\x94" /* stores the top of the stack under the next number */
#define BINGET "h"
#define LONG_BINGET "j"

/* Classes, with their memo numbers. */
enum { TENSOR, CHUNK, BYTES, PROPERTIES, INDEX, INFO, SIZE, NCLASSES };

static const char *const classes[NCLASSES] = {
	[TENSOR] = MODULE "metadata\nTensorStorageMetadata\n",
	[CHUNK] = MODULE "metadata\nChunkStorageMetadata\n",
	[BYTES] = MODULE "metadata\nBytesStorageMetadata\n",
	[PROPERTIES] = MODULE "metadata\nTensorProperties\n",
	[INDEX] = MODULE "metadata\nMetadataIndex\n",
	[INFO] = MODULE "filesystem\n_StorageInfo\n",
	[SIZE] = "torch\nSize\n",
};

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

struct view_dcp_cut view_dcp_cut(enum dtype dtype, const uint64_t *shape,
			       unsigned ndim, unsigned ranks)
{
	struct view_dcp_cut c = { .rows = ndim ? shape[0] : 1, .row = 1 };
	uint64_t bytes;

	for (unsigned i = 1; i < ndim; i++)
		c.row *= shape[i];
	c.unit = c.piece = c.rows;
	bytes = ceil_div(c.rows, ranks) * c.row * dtype_size(dtype);
	if (bytes == 0)
		return c;
	c.unit = ceil_div(c.rows, ranks);
	if (bytes < VIEW_DCP_CHUNK_MIN)
		c.unit *= ceil_div(VIEW_DCP_CHUNK_MIN, bytes);
	c.piece = bytes <= VIEW_DCP_CHUNK_MAX
			  ? c.unit
			  : ceil_div(c.unit, ceil_div(bytes, VIEW_DCP_CHUNK_MAX));
	return c;
}

uint64_t view_dcp_cut_end(const struct view_dcp_cut *c, uint64_t row)
{
	const uint64_t end = row + c->piece;
	const uint64_t border = c->unit ? row - row % c->unit + c->unit : 0;
	const uint64_t least = end < border ? end : border;

	return least < c->rows ? least : c->rows;
}

struct writer {
	struct bytebuf *out;
	unsigned ranks;      /* number of ranks that tensors are cut for */
	uint32_t memo;       /* the next memo number */
	struct bytebuf blob; /* scratch */
};

#define PUT(w, opcodes) bytebuf_add((w)->out, opcodes, sizeof(opcodes) - 1)

static void put_text(const struct writer *w, const char *text)
{
	pickle_add_text(w->out, text, strlen(text));
}

static uint32_t memoize(struct writer *w)
{
	PUT(w, MEMOIZE);
	return w->memo++;
}

static void memo_get(const struct writer *w, uint32_t number)
{
	if (number <= UINT8_MAX) {
		PUT(w, BINGET);
		bytebuf_add_u8(w->out, (uint8_t)number);
	} else {
		PUT(w, LONG_BINGET);
		bytebuf_add_le32(w->out, number);
	}
}

/* Put a torch.Size: `first`, then shape[1..], or zeros if `shape` is NULL. */
static void put_size(const struct writer *w, unsigned ndim, uint64_t first, const uint64_t *shape)
{
	memo_get(w, SIZE);
	PUT(w, MARK);
	for (unsigned i = 0; i < ndim; i++)
		pickle_add_int(w->out, (int64_t)(i == 0 ? first : shape ? shape[i] : 0));
	PUT(w, TUPLE TUPLE1 REDUCE);
}

/* The memo numbers of a tensor: its key, the size of most chunks, the offset of each
 * chunk. */
enum { OF_KEY, OF_PIECE, OF_CHUNKS };

static void put_tensor(struct writer *w, const struct view_dcp_entry *e, uint32_t memo)
{
	const struct view_dcp_cut cut = view_dcp_cut(e->dtype, e->shape, e->ndim, w->ranks);
	uint64_t row = 0, next;

	put_size(w, e->ndim, cut.piece, e->shape);
	memoize(w);
	PUT(w, POP);
	memo_get(w, TENSOR);
	PUT(w, MARK);
	memo_get(w, PROPERTIES);
	PUT(w, GLOBAL "torch\n");
	bytebuf_add_str(w->out, dtype_name(e->dtype));
	PUT(w, "\n" TUPLE1 REDUCE);
	put_size(w, e->ndim, cut.rows, e->shape);
	PUT(w, EMPTY_LIST MARK);
	do {
		next = view_dcp_cut_end(&cut, row);
		memo_get(w, CHUNK);
		put_size(w, e->ndim, row, NULL);
		memoize(w);
		if (next - row == cut.piece)
			memo_get(w, memo + OF_PIECE);
		else
			put_size(w, e->ndim, next - row, e->shape);
		PUT(w, TUPLE2 REDUCE);
		row = next;
	} while (row < cut.rows);
	PUT(w, APPENDS TUPLE REDUCE);
}

/* Return the bytes of the blob with `rows` rows. */
static uint64_t blob_len(struct writer *w, const struct view_dcp_entry *e,
			 const struct view_dcp_cut *cut, uint64_t rows)
{
	uint64_t shape[TENSOR_DIMS_MAX] = { 0 };

	if (e->ndim)
		memcpy(shape, e->shape, e->ndim * sizeof(*shape));
	shape[0] = rows;
	w->blob.len = 0;
	legacy_add_tensor(&w->blob, e->dtype, shape, e->ndim);
	return w->blob.len + rows * cut->row * dtype_size(e->dtype);
}

/* Put a _StorageInfo after its path, and store it under the preceding key. */
static void end_info(const struct writer *w, uint64_t offset, uint64_t len)
{
	pickle_add_int(w->out, (int64_t)offset);
	pickle_add_int(w->out, (int64_t)len);
	PUT(w, TUPLE REDUCE SETITEM);
}

static void put_places(struct writer *w, const struct view_dcp_entry *e, uint32_t memo)
{
	const struct view_dcp_cut cut = view_dcp_cut(e->dtype, e->shape, e->ndim, w->ranks);
	const uint64_t usual = blob_len(w, e, &cut, cut.piece);
	uint64_t at = e->offset, row = 0, next, len;
	uint32_t i = 0, file = 0;

	do {
		next = view_dcp_cut_end(&cut, row);
		len = next - row == cut.piece ? usual : blob_len(w, e, &cut, next - row);
		memo_get(w, INDEX);
		memo_get(w, memo + OF_KEY);
		memo_get(w, memo + OF_CHUNKS + i++);
		PUT(w, TUPLE2 REDUCE);
		memo_get(w, INFO);
		PUT(w, MARK);
		if (row) {
			memo_get(w, file);
		} else {
			put_text(w, e->file);
			file = memoize(w);
		}
		end_info(w, at, len);
		at += len;
		row = next;
	} while (row < cut.rows);
}

static void put_object_place(const struct writer *w, const struct view_dcp_entry *e, uint32_t memo)
{
	memo_get(w, INDEX);
	memo_get(w, memo + OF_KEY);
	PUT(w, TUPLE1 REDUCE);
	memo_get(w, INFO);
	PUT(w, MARK);
	put_text(w, e->file);
	end_info(w, e->offset, e->len);
}

static void put_path(const struct writer *w, const struct view_dcp_entry *e)
{
	PUT(w, MARK);
	for (unsigned i = 0; i < e->nsteps; i++)
		if (e->path[i].text)
			put_text(w, e->path[i].text);
		else
			pickle_add_int(w->out, (int64_t)e->path[i].i);
	PUT(w, TUPLE);
}

/* Put the arguments of Metadata.  memo[i] becomes the first memo number of entry i. */
static void put_entries(struct writer *w, const struct view_dcp_entry *v, size_t n, uint32_t *memo)
{
	PUT(w, EMPTY_DICT);
	for (size_t i = 0; i < n; i++) {
		put_text(w, v[i].key);
		memo[i] = memoize(w);
		if (v[i].is_tensor) {
			put_tensor(w, &v[i], memo[i]);
		} else {
			memo_get(w, BYTES);
			PUT(w, EMPTY_TUPLE REDUCE);
		}
		PUT(w, SETITEM);
	}
	PUT(w, EMPTY_DICT);
	for (size_t i = 0; i < n; i++) {
		memo_get(w, memo[i]);
		put_path(w, &v[i]);
		PUT(w, SETITEM);
	}
	PUT(w, EMPTY_DICT);
	for (size_t i = 0; i < n; i++)
		if (v[i].is_tensor)
			put_places(w, &v[i], memo[i]);
		else
			put_object_place(w, &v[i], memo[i]);
}

int view_dcp_metadata_write(const struct view_dcp_entry *v, size_t n, unsigned ranks,
			   struct bytebuf *out, struct errmsg *err)
{
	uint32_t *memo = malloc((n + 1) * sizeof(*memo));
	struct writer w = { .out = out, .ranks = ranks };

	if (!memo)
		return errmsg_nomem(err, DCP_METADATA);
	PUT(&w, PROTO);
	for (unsigned i = 0; i < NCLASSES; i++) {
		PUT(&w, GLOBAL);
		bytebuf_add_str(out, classes[i]);
		memoize(&w);
		PUT(&w, POP);
	}
	PUT(&w, GLOBAL MODULE "metadata\nMetadata\n" MARK);
	put_entries(&w, v, n, memo);
	PUT(&w, TUPLE REDUCE STOP);
	out->failed |= w.blob.failed;
	bytebuf_done(&w.blob);
	free(memo);
	return out->failed ? errmsg_nomem(err, DCP_METADATA) : 0;
}
