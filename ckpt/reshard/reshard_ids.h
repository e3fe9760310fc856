/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_IDS_H
#define UCKPT_RESHARD_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct value;
struct zero_checkpoint;

/* Does a model-states file (`root`) list `name` as a buffer of the module? */
bool reshard_is_buffer(const struct value *root, const char *name);

/*
 * Find the ds_id of each parameter: ZeRO-3 numbers parameters, and tags the master
 * weights of a sub-group with the numbers of its first and last one.  Entry i of
 * param_shapes[g] has (*ids)[(*start)[g] + i]; the caller frees both.  `*ids` is NULL
 * if the numbers cannot be inferred.  Opens the first model-states file and the first
 * optimizer shard of model-parallel rank `mp`.
 */
int reshard_find_ids(const struct zero_checkpoint *r, unsigned mp,
		     int64_t **ids, size_t **start, struct errmsg *err);

#endif
