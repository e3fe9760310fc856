/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REMOTE_OPTIONS_H
#define UCKPT_REMOTE_OPTIONS_H

struct errmsg;
struct uckpt;

/* How servers are used.  Set before the first source is added and before threads are
 * started; not changed afterwards. */
#define REMOTE_DEADLINE_S 60u

/* Set options, which are separated by commas.  -EINVAL with the one that is wrong. */
int remote_options_set_all(struct uckpt *u, const char *list,
			   struct errmsg *err);

/* Set an option, "NAME=VALUE" or "NAME".  Returns NULL, or what is wrong with it. */
const char *remote_options_set(struct uckpt *u, const char *text);

void remote_options_done(struct uckpt *u);

#endif
