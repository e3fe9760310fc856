/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ERRMSG_H
#define UCKPT_ERRMSG_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/uckpt.h"

struct arena;

#define ERRMSG_MAX UCKPT_ERROR_MAX

/*
 * One error: where it was found (file, position), what was expected, what was
 * found.  The code that detects the problem sets it; its callers pass it up
 * unchanged.
 */
struct errmsg {
	char text[ERRMSG_MAX]; /* UTF-8 that a terminal may show */
};

/* Return the error that a caller of the library passed (it may be NULL), with an empty text. */
static inline struct errmsg *errmsg_of(struct uckpt_error *err)
{
	static_assert(sizeof(struct errmsg) == sizeof(*err), "one text");
	if (err)
		err->text[0] = '\0';
	return (struct errmsg *)err;
}

/* Set the text, formatted like printf, and return `rc`. */
int errmsg_set(struct errmsg *err, int rc, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* A receiver of texts that are not errors of the caller, such as warnings. */
struct errmsg_sink {
	void (*put)(void *ctx, const char *text); /* NULL: discard the texts */
	void *ctx;
};

/* Format a text as errmsg_set does, and pass it to the sink. */
void errmsg_put(const struct errmsg_sink *to, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A list of texts; an arena owns them. */
struct errmsg_list {
	const char **v;
	size_t n, cap;
};

/* Add a text, formatted as errmsg_set does.  False when the arena is exhausted. */
bool errmsg_list_add(struct errmsg_list *l, struct arena *a, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Pass each text to the sink. */
void errmsg_list_put(const struct errmsg_list *l, const struct errmsg_sink *to);

/* As errmsg_set, with the file's name before the message.  `x` points to any
 * structure with a `file` and an `err`. */
#define ERRMSG_FILE(x, rc, fmt, ...) \
	errmsg_set((x)->err, rc, "%s: " fmt, (x)->file, ##__VA_ARGS__)

/* Report that a system call failed on `name`: "NAME: cannot do: REASON", with
 * errno's reason.  Returns -errno. */
int errmsg_errno(struct errmsg *err, const char *name, const char *cannot_do);

/* Report that memory ran out at work on `name`, a file or NULL.  Returns
 * -ENOMEM. */
int errmsg_nomem(struct errmsg *err, const char *name);

#endif
