/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPTIONS_IMPL_H
#define UCFS_OPTIONS_IMPL_H

struct fuse_args;

/* A callback of fuse_opt_parse without a table, so that libfuse never has to complain of
 * an option: 1 keeps the argument for libfuse, 0 drops it, and -1 reports an error.
 * `options` is a struct options. */
int options_take(void *options, const char *arg, int key, struct fuse_args *args);

#endif
