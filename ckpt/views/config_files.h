/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIDECARS_H
#define UCKPT_SIDECARS_H

#include <stddef.h>

struct checkpoint;
struct errmsg;
struct shards;
struct ckpt_file;

/*
 * Files of a tag's model that from_pretrained of transformers, or of PEFT for an adapter
 * (adapter.h), reads in addition to the weights: the configurations of the model, the
 * adapter and the tokenizer, and the code that they name.  Immutable.
 */
struct config_files {
	struct ckpt_file *v; /* sorted by name */
	size_t n, cap;
	struct shards *shards; /* numbered as in `v` */
	/* config.json, or adapter_config.json for an adapter; NULL: not found */
	const struct ckpt_file *config;
	char *missing; /* if config is NULL: a text that names the searched places */
};

/*
 * Find the configuration files of a tag, or of its adapter (NULL: none).  They are searched in its
 * directory, where uctrain writes them, in the run's directory above it, and in `more` (NULL:
 * nowhere); the first file with a name counts.  PEFT saves a named adapter in a directory of the run, which is
 * then searched before the run's directory.  If `config` is in none of these, the directory above
 * the run is searched, too, but only if the width in its config.json equals a dimension of some
 * parameter, and no other user can write there.  A directory that cannot be read counts as empty.
 * Returns -ENOMEM. Call config_files_done after success.
 */
int config_files_find(struct config_files *c, const struct checkpoint *tag, const char *adapter,
		      const char *more, struct errmsg *err);

/* Find only the configuration of an adapter that has a directory: in the tag's directory, the run's
 * or `more`. */
int config_files_find_adapter(struct config_files *c, const struct checkpoint *tag,
			      const char *adapter, const char *more, struct errmsg *err);
void config_files_done(struct config_files *c);

#endif
