/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ADAPTER_DIRS_H
#define UCKPT_ADAPTER_DIRS_H

#include "ckpt/views/adapter.h"
#include "ckpt/views/config_files.h"

struct errmsg_sink;

/* A directory with one adapter, as save_pretrained of PEFT writes it beside "default". */
struct adapter_dir {
	const struct adapter *one;
	size_t n;           /* number of weights in its file: */
	size_t *weights;    /* indices of these weights */
	const char **names; /* names of these weights in the file */
	struct config_files own;
	const struct config_files *config_files; /* with its configuration, if that was found */
};

/* The files for the adapters of a tag's weights.  Immutable; zero is none. */
struct adapter_dirs {
	struct arena arena;
	struct adapters all;
	const struct adapter *top; /* NULL: the weights are saved in ordinary files */
	/* Valid if there is a top: each weight's name in the top's file, or NULL. */
	const char **names;
	struct adapter_dir *v;
	size_t n;
	const char *left_out; /* a trained weight that no file contains; or NULL */
};

/* Find the directories; the weights must outlive them.  Returns -ENOMEM.  Call adapter_dirs_done
 * in any case. */
int adapter_dirs_find(struct adapter_dirs *d, const struct checkpoint *c, struct errmsg *err);

/* Find the configurations of the directories.  Directories' names must not contain a dot, unlike
 * the names of all files at the top.  `top`: those of the top.  Returns -ENOMEM. */
int adapter_dirs_configure(struct adapter_dirs *d, const struct checkpoint *tag, const char *more,
			   const struct config_files *top, struct errmsg *err);

/* Warn of weights that no file contains. */
void adapter_dirs_warn(const struct adapter_dirs *d, const struct errmsg_sink *to);

void adapter_dirs_done(struct adapter_dirs *d);

#endif
