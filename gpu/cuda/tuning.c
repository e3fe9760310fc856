/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file is text: a line with the format's name and version, a line for each
 * choice (its bytes in hexadecimal, a space, the key), and a line with the CRC-32
 * of the lines before it.  A library may crash on a choice that it did not make:
 * a damaged file is not used at all.
 */
#include "gpu/cuda/tuning.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/write_all.h"

#define MAGIC "uctrain-tuning "
#define HEADER MAGIC "1\n"
#define END "crc32 "
#define END_BYTES (sizeof(END) - 1 + 8 + 1)

/* Tens of thousands of choices; a model has dozens. */
#define FILE_MAX ((size_t)16 << 20)

struct entry {
	char *key;
	uint8_t choice[TUNING_CHOICE];
};

struct tuning {
	char *path;
	struct entry *entries;
	size_t n, room;
	bool changed;
	bool is_ours; /* the file, or nothing is there */
};

static void forget_from(struct tuning *t, size_t n)
{
	while (t->n > n)
		free(t->entries[--t->n].key);
}

void tuning_close(struct tuning *t)
{
	if (!t)
		return;
	forget_from(t, 0);
	free(t->entries);
	free(t->path);
	free(t);
}

static struct entry *find(const struct tuning *t, const char *key)
{
	for (size_t i = 0; i < t->n; i++)
		if (strcmp(t->entries[i].key, key) == 0)
			return &t->entries[i];
	return NULL;
}

const uint8_t *tuning_find(const struct tuning *t, const char *key)
{
	const struct entry *const e = find(t, key);

	return e ? e->choice : NULL;
}

static int append(struct tuning *t, const char *key,
		  const uint8_t choice[TUNING_CHOICE], struct errmsg *err)
{
	struct entry e = { .key = strdup(key) };

	if (!e.key || !array_reserve(&t->entries, &t->room, t->n + 1,
				     sizeof(*t->entries))) {
		free(e.key);
		return errmsg_nomem(err, t->path);
	}
	memcpy(e.choice, choice, TUNING_CHOICE);
	t->entries[t->n++] = e;
	return 0;
}

int tuning_set(struct tuning *t, const char *key,
	       const uint8_t choice[TUNING_CHOICE], struct errmsg *err)
{
	struct entry *const e = find(t, key);

	assert(*key && !strchr(key, '\n'));
	t->changed = true;
	if (!e)
		return append(t, key, choice, err);
	memcpy(e->choice, choice, TUNING_CHOICE);
	return 0;
}

/* --- reading ---------------------------------------------------------------- */

static int damaged(const struct tuning *t, const char *how, struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: %s", t->path, how);
}

static int read_hex(const char *hex, uint8_t *out, size_t n)
{
	static const char digits[] = "0123456789abcdef";

	memset(out, 0, n);
	for (size_t i = 0; i < 2 * n; i++) {
		const char *const d = hex[i] ? strchr(digits, hex[i]) : NULL;

		if (!d)
			return -EBADMSG;
		out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digits));
	}
	return 0;
}

/* A line without its end.  What is known already stays. */
static int read_entry(struct tuning *t, const char *line, struct errmsg *err)
{
	const size_t hex = 2 * TUNING_CHOICE;
	const char *const key = line + hex + 1;
	uint8_t choice[TUNING_CHOICE];

	if (strlen(line) < hex + 2 || line[hex] != ' ' ||
	    read_hex(line, choice, TUNING_CHOICE))
		return damaged(t, "has a line that is no choice", err);
	return find(t, key) ? 0 : append(t, key, choice, err);
}

static int check_header(const struct tuning *t, const char *text, size_t len,
			struct errmsg *err)
{
	if (len < strlen(MAGIC) || memcmp(text, MAGIC, strlen(MAGIC)) != 0)
		return errmsg_set(err, -EINVAL,
				  "%s: is no tuning cache of uctrain", t->path);
	if (len < strlen(HEADER) || memcmp(text, HEADER, strlen(HEADER)) != 0)
		return errmsg_set(
			err, -EINVAL,
			"%s: is a tuning cache of another version of uctrain",
			t->path);
	return 0;
}

/* `body` bytes are before the last line. */
static int check_end(const struct tuning *t, const char *text, size_t body,
		     struct errmsg *err)
{
	char want[END_BYTES + 1];

	snprintf(want, sizeof(want), END "%08" PRIx32 "\n",
		 crc32_add(0, text, body));
	return memcmp(text + body, want, END_BYTES) == 0
		       ? 0
		       : damaged(t, "is damaged: its checksum is wrong", err);
}

static int parse(struct tuning *t, char *text, size_t len, struct errmsg *err)
{
	const size_t before = t->n;
	size_t body;
	int rc = check_header(t, text, len, err);

	if (rc)
		return rc;
	if (len < strlen(HEADER) + END_BYTES)
		return damaged(t, "is damaged: it is cut short", err);
	body = len - END_BYTES;
	rc = check_end(t, text, body, err);
	for (char *at = text + strlen(HEADER), *end; !rc && at < text + body;
	     at = end + 1) {
		end = memchr(at, '\n', (size_t)(text + len - at));
		assert(end); /* the last line has one */
		*end = '\0';
		rc = read_entry(t, at, err);
	}
	if (rc)
		forget_from(t, before);
	return rc;
}

/* Read the whole of a regular file of at most FILE_MAX bytes. */
static int read_file(int fd, const char *path, struct bytebuf *b,
		     struct errmsg *err)
{
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st) < 0)
		return errmsg_errno(err, path, "cannot read");
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > FILE_MAX)
		return errmsg_set(err, -EINVAL,
				  "%s: is no tuning cache of uctrain", path);
	bytebuf_add_fill(b, 0, (size_t)st.st_size);
	if (b->failed)
		return errmsg_nomem(err, path);
	n = pread(fd, b->data, b->len, 0);
	if (n < 0)
		return errmsg_errno(err, path, "cannot read");
	b->len = (size_t)n;
	return 0;
}

/* Add the file's choices to those known; none of them if it is damaged. */
static int read_choices(struct tuning *t, struct errmsg *err)
{
	struct bytebuf b = { 0 };
	const int fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	int rc;

	if (fd < 0 && errno == ENOENT) {
		t->is_ours = true;
		return 0;
	}
	if (fd < 0) {
		rc = errmsg_errno(err, t->path, "cannot open");
	} else {
		rc = read_file(fd, t->path, &b, err);
		close(fd);
	}
	if (!rc && b.len)
		rc = parse(t, (char *)b.data, b.len, err);
	bytebuf_done(&b);
	t->is_ours = !rc || rc == -EBADMSG;
	return rc;
}

int tuning_open(struct tuning **out, const char *path, struct errmsg *err)
{
	struct tuning *const t = calloc(1, sizeof(*t));

	*out = NULL;
	if (t)
		t->path = strdup(path);
	if (!t || !t->path) {
		free(t);
		return errmsg_nomem(err, path);
	}
	*out = t;
	return read_choices(t, err);
}

/* --- writing ---------------------------------------------------------------- */

static void print_choices(const struct tuning *t, struct bytebuf *b)
{
	char text[END_BYTES + 1];

	bytebuf_add_str(b, HEADER);
	for (size_t i = 0; i < t->n; i++) {
		for (size_t k = 0; k < TUNING_CHOICE; k++) {
			snprintf(text, sizeof(text), "%02x",
				 t->entries[i].choice[k]);
			bytebuf_add_str(b, text);
		}
		bytebuf_add_str(b, " ");
		bytebuf_add_str(b, t->entries[i].key);
		bytebuf_add_str(b, "\n");
	}
	snprintf(text, sizeof(text), END "%08" PRIx32 "\n",
		 crc32_add(0, b->data, b->len));
	bytebuf_add_str(b, text);
}

static int write_file(const char *path, const char *tmp,
		      const struct bytebuf *b, struct errmsg *err)
{
	const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	int rc = 0;

	if (fd < 0)
		return errmsg_errno(err, path, "cannot create");
	if (write_all(fd, b->data, b->len) || fsync(fd) < 0)
		rc = errmsg_errno(err, path, "cannot write");
	if (close(fd) < 0 && !rc)
		rc = errmsg_errno(err, path, "cannot write");
	if (!rc && rename(tmp, path) < 0)
		rc = errmsg_errno(err, path, "cannot replace");
	if (rc)
		unlink(tmp);
	return rc;
}

int tuning_save(struct tuning *t, struct errmsg *err)
{
	struct bytebuf b = { 0 };
	struct errmsg why;
	char *tmp;
	int rc;

	if (!t->changed || !t->is_ours)
		return 0;
	t->changed = false;
	read_choices(t, &why);
	if (!t->is_ours)
		return errmsg_set(err, -EINVAL, "%s", why.text);
	if (asprintf(&tmp, "%s.tmp-%ld", t->path, (long)getpid()) < 0)
		return errmsg_nomem(err, t->path);
	print_choices(t, &b);
	rc = b.failed ? errmsg_nomem(err, t->path)
		      : write_file(t->path, tmp, &b, err);
	bytebuf_done(&b);
	free(tmp);
	return rc;
}
