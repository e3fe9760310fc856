/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_COVER_H
#define UCKPT_DCP_COVER_H

struct dcp_item;
struct errmsg;

/*
 * Sort the chunks of a tensor and check that each element is in exactly one of them.
 * torch checks it when it saves on several ranks, and never when it loads.  -EBADMSG if
 * not, -E2BIG for chunks that take too long to compare; `file` is for messages.
 */
int dcp_cover_check(struct dcp_item *t, const char *file, struct errmsg *err);

#endif
