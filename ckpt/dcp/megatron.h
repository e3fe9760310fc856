/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_MEGATRON_H
#define UCKPT_DCP_MEGATRON_H

#include <stdbool.h>
#include <stdint.h>

struct dcp_metadata;
struct errmsg;
struct uckpt;
struct value;

/* The file beside the metadata of Megatron-LM's checkpoints. */
#define DCP_MEGATRON_COMMON "common.pt"

/* What that file has. */
struct dcp_megatron {
	bool found;
	struct value *options; /* of the first group of parameters, in the arena of the
				* metadata; an empty dict if there is none */
	int64_t step;	       /* of the optimizer */
	int64_t iteration;
	const char *unread; /* key of a tensor of the optimizer that is no state of a
			     * parameter, such as a bucket; or NULL */
};

/*
 * If the directory is one of Megatron-LM's (torch_dist), give the items of its metadata
 * the paths that get_state_dict would give them, with a parameter for each layer of a stack.
 * -ENOTSUP for a blob of several layers; otherwise errors as ptfile_open_source.
 */
int dcp_megatron_find(struct dcp_megatron *x, struct dcp_metadata *m, struct uckpt *u,
		      const char *dir, struct errmsg *err);

#endif
