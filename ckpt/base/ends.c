/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/ends.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"

struct ends {
	const struct source *of;
	size_t head;   /* bytes at the beginning */
	uint64_t tail; /* where those at the end begin */
	uint8_t bytes[];
};

static int ends_read(const struct source *s, void *buf, size_t len,
		     uint64_t off, struct errmsg *err)
{
	const struct ends *const e = s->ctx;
	const uint8_t *p = NULL;

	if (off + len <= e->head)
		p = e->bytes + off;
	else if (off >= e->tail)
		p = e->bytes + e->head + (off - e->tail);
	else
		return source_read(e->of, buf, len, off, err);
	memcpy(buf, p, len);
	return 0;
}

static void ends_close(struct source *s)
{
	free(s->ctx);
}

int ends_grow(struct source *s, uint64_t to, struct errmsg *err)
{
	struct ends *const e = s->ctx;
	const size_t tail = (size_t)(s->size - e->tail);
	const uint64_t head = to < e->tail ? to : e->tail;
	struct ends *grown;
	int rc;

	if (head <= e->head)
		return 0;
	grown = malloc(sizeof(*grown) + head + tail);
	if (!grown)
		return errmsg_nomem(err, s->name);
	*grown = (struct ends){ .of = e->of,
				.head = (size_t)head,
				.tail = e->tail };
	rc = source_read(e->of, grown->bytes + e->head, grown->head - e->head,
			 e->head, err);
	if (rc) {
		free(grown);
		return rc;
	}
	memcpy(grown->bytes, e->bytes, e->head);
	memcpy(grown->bytes + grown->head, e->bytes + e->head, tail);
	s->ctx = grown;
	free(e);
	return 0;
}

int ends_open(struct source *out, const struct source *of, size_t len,
	      struct errmsg *err)
{
	static const struct source_ops ops = { .read = ends_read,
					       .close = ends_close };
	const bool all = of->size <= 2 * len;
	const size_t head = all ? (size_t)of->size : len;
	const uint64_t tail = all ? of->size : of->size - len;
	struct ends *const e = malloc(sizeof(*e) + 2 * len);
	int rc;

	if (!e)
		return errmsg_nomem(err, of->name);
	*e = (struct ends){ .of = of, .head = head, .tail = tail };
	rc = source_read(of, e->bytes, head, 0, err);
	if (!rc && !all)
		rc = source_read(of, e->bytes + head, len, tail, err);
	if (rc) {
		free(e);
		return rc;
	}
	*out = (struct source){ .name = of->name,
				.size = of->size,
				.fd = -1,
				.ops = &ops,
				.ctx = e };
	return 0;
}
