/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_EXTRACT_H
#define UCKPT_PACK_EXTRACT_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct pack;

struct pack_extract_options {
	unsigned width; /* threads */
	/* As of struct pack_write_options. */
	bool (*progress)(void *ctx, uint64_t bytes);
	void *ctx;
};

/*
 * Decode all of a pack and compare each file with its hash.  With a directory
 * (else -1), which is empty, write the files and directories there, with their
 * modes and times; they are on the medium when this returns.  -EBADMSG for a
 * damaged block or file, which the message names; -EINTR if progress said so; or
 * what the system said.
 */
int pack_extract(struct pack *p, int dirfd,
		 const struct pack_extract_options *o, struct errmsg *err);

#endif
