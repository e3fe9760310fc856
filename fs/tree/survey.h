/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_SURVEY_H
#define UCFS_SURVEY_H

#include <stdint.h>

struct errmsg;
struct tag_list;
struct tree;

/* Plan the universal tree of the tag at `path`, in directory `index` (pathtab.h) of
 * the run.  Errors as views_plan. */
int survey_plan_tag(struct tree *t, uint64_t index, const char *path,
		    struct errmsg *err);

/*
 * Warn of every tag of a run that will not be served, and of a `latest` that names
 * none.  `tags` are those of the source itself; without any, tags are looked for two
 * levels below.  Opens no file that planning has not opened.
 */
void survey_run(struct tree *t, const struct tag_list *tags);

#endif
