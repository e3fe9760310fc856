/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_INFO_H
#define UCKPT_CMD_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/cmd/findings.h"
#include "ckpt/zero/shard.h"
#include "ckpt/dirs/tags.h"

struct cJSON;
struct plan;

/* What `ucckpt info` has found out, for its printers. */
struct info {
	char *dir; /* the tag's directory */
	enum tags_choice choice;
	bool quick;

	struct plan *plan; /* NULL: it cannot be served */
	uint64_t params, elements;		 /* of the optimizer */
	uint64_t module_params, module_elements; /* only in the module */

	const struct shard *profile; /* rank 0's; NULL: damaged */
	uint64_t files, bytes;	     /* of the tree, if there is a profile */

	struct lines warnings; /* does not keep it from being served */
	struct lines problems;
};

/* The value of a state that is one number for a whole group, and its type;
 * false for others. */
bool info_state_number(const struct shard_state *st, double *value);
const char *info_state_type(const struct shard_state *st);

void info_print_text(const struct info *info);
struct cJSON *info_to_json(const struct info *info);

#endif
