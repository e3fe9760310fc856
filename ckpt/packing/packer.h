/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACKER_H
#define UCKPT_PACKER_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;

struct packer_options {
	unsigned width; /* threads */
	/* Called with 0 and all bytes of work when these are known, then with
	 * what has been done; false to stop.  By several threads at once. */
	bool (*progress)(void *ctx, uint64_t done, uint64_t all);
	void *ctx;
};

struct packer_result {
	uint64_t files;
	uint64_t bytes;  /* of all files */
	uint64_t packed; /* of the pack */
};

/*
 * Pack a directory into the new file `out`, which appears when it is complete
 * and every block of it has been decoded and found to be the original's.
 * -EEXIST if there is such a file, -EINTR if progress said so; otherwise as
 * pack_inputs_list, pack_write and pack_open.
 */
int packer_pack(const char *dir, const char *out, const struct packer_options *o,
		struct packer_result *result, struct errmsg *err);

/* Write the directory that a pack was made of to the new directory `out`, which
 * appears whole. */
int packer_unpack(const char *pack, const char *out,
		  const struct packer_options *o, struct packer_result *result,
		  struct errmsg *err);

/* Decode all of a pack and compare it with its hashes. */
int packer_verify(const char *pack, const struct packer_options *o,
		  struct packer_result *result, struct errmsg *err);

#endif
