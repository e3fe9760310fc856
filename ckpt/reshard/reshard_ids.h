/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_IDS_H
#define UCKPT_RESHARD_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct value;
struct zero_checkpoint;

/* Is `name` a buffer of the module, by a model-states file's object? */
bool reshard_is_buffer(const struct value *root, const char *name);

/*
 * The numbers by which ZeRO-3 knows parameters (ds_id), which the master
 * weights of a sub-group carry: of entry i of param_shapes[g] at
 * (*ids)[(*start)[g] + i].  Files only have those of the first and the last
 * parameter of each sub-group.  `*ids` stays NULL if the rest cannot be known.
 * The caller frees both.  Opens the first model-states file of model-parallel
 * rank `mp`, and its first optimizer shard.
 */
int reshard_find_ids(const struct zero_checkpoint *r, unsigned mp, int64_t **ids,
		     size_t **start, struct errmsg *err);

#endif
