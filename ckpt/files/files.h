/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FILES_H
#define UCKPT_FILES_H

#include "ckpt/io/io.h"

struct errmsg;
struct ptfile;
struct uckpt;

/* A context with the default options, and nothing open; NULL when memory runs out. */
struct uckpt *context_new(void);

/* All that was opened in it must have been closed.  `u` may be NULL. */
void context_free(struct uckpt *u);

/* As io_open, of a file of torch.save; as ptfile_open_source. */
int files_open_pt(struct uckpt *u, const char *path, const struct fileid *known,
		  struct ptfile *out, struct errmsg *err);

/* Does a directory have a name that is wanted?  Reads no further than to the first, since
 * the directories of large runs have thousands of names. */
bool files_has(struct uckpt *u, const char *path,
	       bool (*wanted)(const char *name));

#endif
