/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CONTEXT_H
#define UCKPT_CONTEXT_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/uckpt.h"

#define CONTEXT_DEADLINE_S 60u

/*
 * The options and open files of one user of the library.  All code that reads checkpoints is passed
 * this context; contexts in one process are independent.  Each member belongs to the room that
 * declares its type; context_new (io/io.h) makes one.
 */
struct uckpt {
	/* Set before threads are started: */
	struct uckpt_calls calls;
	struct confined *confined; /* roots that no link leaves (beneath.h) */
	struct united *unions;     /* unions of directories (io/roots.h) */
	struct site *sites;        /* servers (remote/site.h) */
	struct {
		unsigned deadline_s; /* limit of a request with its retries, in seconds */
		char *manifest;    /* file with the names of files, or NULL */
		char *ca_file;     /* NULL: the system's certificates */
		char *s3_endpoint; /* or NULL */
		char *s3_region;   /* or NULL */
		bool s3_anonymous;
	} remote; /* options about servers (commands/settings.c) */

	/* The open source and its options (ckpt/commands): */
	struct settings *settings; /* NULL: nothing was set */
	struct tree *tree;         /* NULL: no source is open */
	pid_t pid;                 /* the process that opened the source */

	/* For requests to servers (remote/http.h): */
	_Atomic int64_t deadline; /* of all operations; 0: each has its own */
	atomic_bool stopped;

	char *model; /* of a distributed checkpoint: the dict of tensors to show, or NULL
		      * (foreign/dcp_optimizer.h) */
	unsigned head_dim; /* for a distributed checkpoint: rows of a head in fused heads; 0: not
			    * set */

	struct cache_pool *cache; /* cache of blocks (remote/cache.h) */

	/* Protects the lists that HACKING.md names, including the following ones; never held across
	 * I/O. */
	pthread_mutex_t lock;
	struct pack *packs;        /* open packs (pack/pack.h) */
	struct remote_list *lists; /* listings of servers' directories (remote/remote.h) */
};

/* Return the caller's function for warnings, which may be NULL. */
static inline struct errmsg_sink context_warnings(const struct uckpt *u)
{
	return (struct errmsg_sink){ u->calls.warning, u->calls.arg };
}

static inline struct errmsg_sink context_notes(const struct uckpt *u)
{
	return (struct errmsg_sink){ u->calls.note, u->calls.arg };
}

/* Progress of long work. */
struct progress {
	const struct uckpt *u; /* has the progress callback */
	uint64_t total;        /* bytes; 0: not known */
	_Atomic uint64_t done;
};

/* Count `bytes` more; with 0, only ask the caller whether to stop.  Returns -EINTR to stop.
 * Thread-safe. */
static inline int progress_add(struct progress *p, uint64_t bytes)
{
	const struct uckpt_calls *c = &p->u->calls;
	const uint64_t done = atomic_fetch_add(&p->done, bytes) + bytes;

	return c->progress && c->progress(c->arg, done, p->total) ? -EINTR : 0;
}

/* Report steps of one kind, such as "reading shards": `done` of `total`, which is 0 if unknown. */
static inline void progress_step(const struct uckpt *u, const char *what, uint64_t done,
				 uint64_t total)
{
	if (u->calls.step)
		u->calls.step(u->calls.arg, what, done, total);
}

#endif
