/* SPDX-License-Identifier: Apache-2.0 */
/* The only list of loaders. */
#include "ckpt/foreign/loaders.h"

#include "ckpt/foreign/dcp.h"
#include "ckpt/foreign/hf.h"
#include "ckpt/zero/checkpoint.h"

int loaders_open(struct uckpt *u, const char *path, enum dir_kind kind,
		 const struct dirlist *names, const struct user_rules *rules,
		 struct checkpoint **out, struct errmsg *err)
{
	static const struct checkpoint_ops *const loaders[DIR_KINDS] = {
		[DIR_WEIGHTS] = &hf_checkpoint_ops,
		[DIR_DCP] = &dcp_checkpoint_ops,
		[DIR_STAGE0] = &stage0_checkpoint_ops,
	};

	/* ZeRO's loader reports what is missing in any other directory. */
	return checkpoint_open(u, loaders[kind] ?: &zero_checkpoint_ops, path, names, rules, out,
			       err);
}
