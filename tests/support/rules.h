/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RULES_H
#define TESTS_RULES_H

#include <stddef.h>

#include "ckpt/table/merge_rules.h"
#include "tests/make/mkpt.h"

/* universal_checkpoint_info for the tests of merge. */

#define REPLICATED "tp_replicated_parameter_patterns"
#define AVERAGE "parameter_to_average_patterns"
#define TWO "parameter_with_2_sub_params_cat_dim_0"
#define ROW "parameter_with_row_parallelism_patterns"
#define VOCAB "vocabulary_parameter_patterns"
#define PIPELINE "pipeline_replicated_parameter_patterns"
#define SUB "parameter_with_sub_params"

/* One list of patterns. */
struct entry {
	const char *list;
	const char *patterns[3];
};

struct value *rules_info(struct mkpt *m, const struct entry *v, size_t n);

/* Compile the rules, which must not fail; free with merge_rules_free. */
struct merge_rules *rules_new(const struct value *info);

#endif
