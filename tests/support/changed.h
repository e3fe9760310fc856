/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHANGED_H
#define TESTS_CHANGED_H

#include "ckpt/format/ptfile.h"
#include "tests/make/mkpt.h"

/* Copies of the reference checkpoints with other values in their files. */

char *changed_path(const char *dir, const char *name);

/* Open a file of torch.save, and copy its storages. */
void changed_open(const char *from, struct ptfile *pt, struct mkpt *m);

/* Make a directory with links to the files of a tag of tests/good, but without those of the pattern
 * `lost`, and with changes (literal.h) in those of the pattern `which`; each may be NULL.
 * mkckpt_free_dir() removes it. */
char *changed_tag(const char *tag, const char *lost, const char *which, const char *change);

#endif
