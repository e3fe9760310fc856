/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_INFO_H
#define UCKPT_CMD_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/shard.h"
#include "ckpt/tags.h"

struct cJSON;
struct plan;

/* Lines of text. */
struct info_lines {
	char **v;
	size_t n, cap;
};

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

	struct info_lines warnings; /* does not keep it from being served */
	struct info_lines problems;
};

/* Add a line, formatted like printf.  Exits when memory runs out. */
void info_add(struct info_lines *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * For a directory that cannot be planned because files are missing or
 * damaged: add a line for each file that the ranks should have written and
 * that is not there, and for each that cannot be read.
 */
void info_survey(struct info *info);

/* "global_step4" chosen from a run, in words; "" for TAGS_ITSELF. */
const char *info_choice_text(enum tags_choice choice);

/* The value of a state that is one number for a whole group, and its type;
 * false for others. */
bool info_state_number(const struct shard_state *st, double *value);
const char *info_state_type(const struct shard_state *st);

void info_print_text(const struct info *info);
struct cJSON *info_to_json(const struct info *info);

#endif
