/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REMOTE_H
#define UCKPT_REMOTE_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/base/source.h"
#include "ckpt/remote/listing.h"

/*
 * Files of servers, by paths that begin with a site's (site.h).  A file's identity is its ETag, or
 * its Last-Modified, with its size; a read returns bytes of that generation, or fails with -EIO.
 * Modes let everyone read, because a server does not know this machine's users.  Attributes and
 * lists are remembered for REMOTE_MEMORY_S seconds.  Thread-safe.
 */
#define REMOTE_MEMORY_S 2

/* As beneath_stat, with a message; servers show no links. */
int remote_stat(struct uckpt *u, const char *path, struct attrs *out,
		struct errmsg *err);

/* Add a directory and its entries.  -ENOTDIR; otherwise as remote_open. */
int remote_list(struct uckpt *u, const char *path, struct dirlist *out,
		struct errmsg *err);

/* A list of a directory, shared by its users. */
struct remote_list {
	char *path;
	uint64_t made_ns;
	struct remote_list *next; /* the context's next older list */
	atomic_uint users; /* includes the context while it remembers the list */
	pthread_mutex_t asking; /* held while attributes are requested; protects: */
	size_t asked;		/* number of files whose attributes were requested */
	struct dirlist names; /* immutable, except that attributes are added */
};

/* Get the list of a directory, from memory or from the server.  -ENOENT if there is no such
 * directory, -EIO if the server does not send it before `end` (http_deadline).  Release it with
 * remote_list_put(). */
int remote_list_get(struct site *s, const char *path, int64_t end,
		    struct remote_list **out, struct errmsg *err);
void remote_list_put(struct remote_list *l);

/* Forget all lists. */
void remote_lists_done(struct uckpt *u);

/* Get the attributes of a file in a list; if the server did not send them with it, those of
 * following files are requested, too. */
int remote_list_meta(struct site *s, struct remote_list *l, const char *name,
		     int64_t end, struct http_meta *out, struct errmsg *err);

/* As source_open. */
int remote_open(struct uckpt *u, struct source *s, const char *path,
		struct errmsg *err);

#endif
