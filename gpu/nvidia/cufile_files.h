/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUFILE_FILES_H
#define UCTRAIN_CUFILE_FILES_H

#include <stdbool.h>
#include <sys/types.h>

#include "gpu/nvidia/cufile_api.h"

struct errmsg;
struct source;

/* Files registered at once; further ones evict the oldest. */
#define CUFILE_FILES 64

/* A file and its registration with cuFile. */
struct cufile_file {
	dev_t dev;
	ino_t ino;
	bool open; /* the next two are valid */
	int fd;
	CUfileHandle_t handle;
	unsigned busy; /* reads in progress */
	bool failed;   /* a read failed */
};

/* Every file is registered once, however often it is opened elsewhere, until it
 * is evicted.  Used by one thread. */
struct cufile_files {
	const struct cufile_api *api;
	unsigned supported; /* bits of CUfileDriverStatusFlags_t */
	unsigned n, oldest;
	struct cufile_file v[CUFILE_FILES];
};

/*
 * Find or register an open file. -ENOTSUP, without a message, if GPUDirect
 * Storage does not support the file, or cuFile failed on it before; a failed
 * registration has a message.
 */
int cufile_files_find(struct cufile_files *f, const struct source *file,
		      struct cufile_file **out, struct errmsg *err);

/* Unregister all files.  No read may be in progress. */
void cufile_files_done(struct cufile_files *f);

#endif
