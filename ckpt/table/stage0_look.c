/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a directory is what DeepSpeed saves without ZeRO (runtime/engine.py,
 * _save_checkpoint): the model states of each model-parallel rank have its optimizer, too.
 */
#include "ckpt/table/stage0_look.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"

int stage0_check_optimizer(const struct value *root, const char *file, struct errmsg *err)
{
	const struct value *optimizer = value_find(root, "optimizer");

	if (!value_pairs(optimizer))
		return errmsg_set(err, -ENOTSUP, "%s: no optimizer is in it, nor *_optim_states.pt"
				  " files beside it: optimizer shards are missing",
				  file);
	if (value_find(optimizer, KEY_FP32_GROUPS))
		return errmsg_set(err, -ENOTSUP, "%s: saved without ZeRO (stage 0) by"
				  " BF16_Optimizer, which saves the states of one"
				  " data-parallel rank only",
				  file);
	return 0;
}

static enum stage0_kind kind_of(const struct value *root)
{
	if (!stage0_check_optimizer(root, "", NULL))
		return STAGE0_OPTIMIZER;
	return value_find_pairs(root, "module") || value_find_items(root, "param_shapes")
		       ? STAGE0_WEIGHTS
		       : STAGE0_NONE;
}

enum stage0_kind stage0_look(struct uckpt *u, const char *dir, struct errmsg *err)
{
	enum stage0_kind kind = STAGE0_NONE;
	struct ptfile pt;
	struct source src;
	char *path;

	if (asprintf(&path, "%s/" STAGE0_FIRST, dir) < 0)
		return kind;
	if (!io_open(u, path, NULL, &src, err) && !ptfile_open_source(&pt, &src, err)) {
		kind = kind_of(pt.root);
		ptfile_close(&pt);
	}
	free(path);
	return kind;
}
