/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REMOTE_OPTIONS_H
#define UCKPT_REMOTE_OPTIONS_H

#include <stdbool.h>

struct errmsg;

/* How servers are used, by the whole process.  Set before the first source is added
 * and before threads are started; not changed afterwards. */
struct remote_options {
	unsigned deadline_s;
	char *manifest;    /* file with the names of files, or NULL */
	char *ca_file;     /* or NULL: the system's certificates */
	char *s3_endpoint; /* or NULL */
	char *s3_region;   /* or NULL */
	bool s3_anonymous;
};

#define REMOTE_DEADLINE_S 60u

const struct remote_options *remote_options(void);

/* Set options, which are separated by commas.  -EINVAL with the one that is wrong.
 * Call `gone`, unless it is NULL, with an option of an earlier version, which has no
 * effect. */
int remote_options_set_all(const char *list, void (*gone)(const char *option),
			   struct errmsg *err);

/* Set an option, "NAME=VALUE" or "NAME".  Returns NULL, or what is wrong with it. */
const char *remote_options_set(const char *text);

#endif
