/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorBoard event files of arbitrary bytes: tags lie within the file, and a
 * truncated file yields a prefix of the events of the whole.
 *
 * Checksums would stop a fuzzer, so the input is the content of records: a 16-bit
 * length and as many bytes, repeated.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/metrics/tbevents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A digest of the reported events, in their order. */
struct events {
	uint64_t sum, calls;
};

static int note(void *ctx, const char *tag, size_t tag_len, uint64_t step,
		double value)
{
	struct events *const t = ctx;

	for (size_t i = 0; tag && i < tag_len; i++)
		t->sum = t->sum * 31 + (uint8_t)tag[i];
	t->sum = t->sum * 31 + step;
	t->calls += value == value;
	return 0;
}

static void add_record(struct bytebuf *b, const uint8_t *p, size_t len)
{
	const size_t at = b->len;

	bytebuf_add_le64(b, len);
	bytebuf_add_le32(b, tfrecord_crc(b->data + at, 8));
	bytebuf_add(b, p, len);
	bytebuf_add_le32(b, tfrecord_crc(p, len));
}

static int read_events(const struct bytebuf *b, struct events *t)
{
	struct errmsg err = { "" };
	struct source src;
	int rc;

	source_init_span(&src, "fuzz", (struct span){ b->data, b->len });
	rc = tbevents_read(&src, note, t, &err);
	assert(rc == 0 || *err.text);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytebuf b = { 0 };
	struct events whole = { 0 }, cut = { 0 };

	bytebuf_reserve(&b, 64);
	while (size >= 2) {
		const size_t want = get_le16(data);
		const size_t len = want < size - 2 ? want : size - 2;

		add_record(&b, data + 2, len);
		data += 2 + len;
		size -= 2 + len;
	}
	assert(!b.failed);
	if (b.len && read_events(&b, &whole) == 0) {
		/* One more byte of an incomplete record reports nothing. */
		bytebuf_add_u8(&b, 0);
		assert(read_events(&b, &cut) == 0);
		assert(cut.sum == whole.sum && cut.calls == whole.calls);
	}
	bytebuf_done(&b);
	return 0;
}
