/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FILEWRITER_H
#define UCKPT_FILEWRITER_H

#include <stddef.h>

/* A new file that is written from its beginning to its end, by threads of its own
 * while the caller goes on; past the page cache where the file system can. */
struct filewriter;

/* `fd` is empty, and stays the caller's.  NULL when memory runs out. */
struct filewriter *filewriter_new(int fd);

/* Append bytes, which are copied.  0, or the negative errno of any write before. */
int filewriter_append(struct filewriter *w, const void *bytes, size_t len)
	__attribute__((warn_unused_result));

/* Wait until all has been written, though it may not be on the medium yet.  Then the
 * file can be written to like any other. */
int filewriter_finish(struct filewriter *w) __attribute__((warn_unused_result));

/* What has been appended and not written may be lost.  Takes NULL. */
void filewriter_free(struct filewriter *w);

#endif
