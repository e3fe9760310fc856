/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_USER_RULES_H
#define UCKPT_USER_RULES_H

struct arena;
struct errmsg;
struct value;

/*
 * Merge rules from the user, for checkpoints whose own rules are missing or
 * wrong: a file, a preset, or both.  The file is a JSON object with the keys of
 * universal_checkpoint_info that are lists of patterns, `original_vocab_size`,
 * and two more (see merge_rules.c).  Immutable once all is read.
 */
struct user_rules {
	struct user_rules_level {
		char *name; /* the file, or "preset NAME"; NULL: not given */
		const struct value *info;
	} preset, file; /* the file takes precedence */
	struct arena *arena;
};

/* Read the rules, which must be zeroed.  -EBADMSG for a malformed object, -EINVAL for an unknown
 * preset, or the system's error. */
int user_rules_read(struct user_rules *r, const char *path, struct errmsg *err);
int user_rules_preset(struct user_rules *r, const char *name, struct errmsg *err);
void user_rules_done(struct user_rules *r);

#endif
