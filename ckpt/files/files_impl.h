/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FILES_IMPL_H
#define UCKPT_FILES_IMPL_H

#include <stdbool.h>
#include <sys/stat.h>

/* Restrict the attributes of a directory, `st`, to users that may list and search
 * `other`, too.  Neither has an ACL afterwards that counts. */
void files_restrict_dir(struct stat *st, bool *has_acl,
			const struct stat *other, bool other_acl);

#endif
