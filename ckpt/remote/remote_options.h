/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REMOTE_OPTIONS_H
#define UCKPT_REMOTE_OPTIONS_H

#include <stdbool.h>

struct errmsg;
struct uckpt;

/* How servers are used.  Set before the first source is added and before threads are
 * started; not changed afterwards. */
#define REMOTE_DEADLINE_S 60u

/* Is it an option of an earlier version, which is accepted for one version?  What to say of
 * it. */
bool remote_option_is_gone(const char *option);
#define REMOTE_OPTION_GONE "%s has no effect in this version and will be an error in the next"

/* Set options, which are separated by commas.  -EINVAL with the one that is wrong.
 * Call `gone`, unless it is NULL, with an option of an earlier version, which has no
 * effect. */
int remote_options_set_all(struct uckpt *u, const char *list,
			   void (*gone)(const char *option), struct errmsg *err);

/* Set an option, "NAME=VALUE" or "NAME".  Returns NULL, or what is wrong with it. */
const char *remote_options_set(struct uckpt *u, const char *text);

void remote_options_done(struct uckpt *u);

#endif
