/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUFILE_FILES_H
#define UCTRAIN_CUFILE_FILES_H

#include <stdbool.h>
#include <sys/types.h>

#include "gpu/nvidia/cufile_api.h"

struct errmsg;
struct source;

/* Files that are known at once: those beyond take the places of others. */
#define CUFILE_FILES 64

/* A file, and whether cuFile reads it. */
struct cufile_file {
	dev_t dev;
	ino_t ino;
	bool open; /* the next two are there */
	int fd;
	CUfileHandle_t handle;
	unsigned busy; /* reads under way */
	bool failed;   /* one of them did */
};

/* Each is registered once, however often it is opened elsewhere, and stays so
 * until the end.  Used by one thread. */
struct cufile_files {
	const struct cufile_api *api;
	unsigned supported; /* bits of CUfileDriverStatusFlags_t */
	unsigned n, oldest;
	struct cufile_file v[CUFILE_FILES];
};

/*
 * The entry of an open file.  -ENOTSUP, without a message, where GPUDirect
 * Storage does not reach the file, or cuFile has failed with it before; what
 * registering fails with has a message.
 */
int cufile_files_find(struct cufile_files *f, const struct source *file,
		      struct cufile_file **out, struct errmsg *err);

/* Nothing is under way. */
void cufile_files_done(struct cufile_files *f);

#endif
