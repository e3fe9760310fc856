/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ZERO_VERIFY_H
#define UCKPT_ZERO_VERIFY_H

#include <stdbool.h>

struct checkpoint;
struct errmsg;
struct errmsg_sink;
struct value;
struct zero_checkpoint;

/* Finds files of a checkpoint that are missing, damaged or from another save, without reading
 * tensors. */

/*
 * Read the map of every shard and the object of every other file of a rank, in
 * parallel: checkpoint_ops.verify of a ZeRO checkpoint.  -EBADMSG if one is damaged or has another
 * step than the others.
 */
int zero_verify(struct checkpoint *c, struct errmsg *err);

/* Report each missing file of a layer, without opening any other file. */
void zero_find_layers(const struct zero_checkpoint *r, const struct errmsg_sink *found);

/* checkpoint_ops.problems: also each missing file of a layer.  checkpoint_ops.check_facts:
 * DeepSpeed's version, the step and the experts. */
void zero_find_problems(struct checkpoint *c, bool all, const struct errmsg_sink *found);
int zero_check_facts(const struct checkpoint *c, const char *path, const struct value *root,
		     struct errmsg *err);

/*
 * Warn of problems that can be found without opening another file: steps that differ between the
 * model states, the first shard and the tag's name, perhaps for good reasons; files that are too
 * small for their contents; tensors that are left out.
 */
void zero_warn(const struct checkpoint *c, const struct errmsg_sink *to);

#endif
