/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INFO_H
#define UCKPT_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/cmd/report.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/zero/shard.h"

struct cJSON;

/* The findings of `ucckpt info`, for its printers. */
struct info {
	struct report report;
	bool quick;

	struct hfdir weights; /* of a Hugging Face directory, if plan_zckpt is NULL */
	uint64_t params, elements;               /* owned by the optimizer */
	uint64_t module_params, module_elements; /* only in the module */

	const struct shard *profile; /* of rank 0; NULL if damaged */
	uint64_t files, bytes;       /* of the tree; 0 without a profile */
};

/* A row of the table of parameters. */
struct info_param {
	const char *name;
	const uint64_t *shape;
	unsigned ndim;
	uint64_t numel;
	int64_t group;    /* of the optimizer; -1: none */
	enum dtype dtype; /* of Hugging Face weights */
};

size_t info_count(const struct info *info);
struct info_param info_param(const struct info *info, size_t i);

/* Get the value of a state that is one number per group, and the name of its
 * type.  info_state_number returns false for other states. */
bool info_state_number(const struct shard_state *st, double *value);
const char *info_state_type(const struct shard_state *st);

void info_print_text(const struct info *info);
struct cJSON *info_to_json(const struct info *info);

#endif
