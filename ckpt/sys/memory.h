/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MEMORY_H
#define UCKPT_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/*
 * Bytes of memory that this process may use, for the defaults of caches: the
 * machine's memory, or less where RLIMIT_AS, the process's cgroup or one of the
 * cgroup's ancestors limits it.
 */
uint64_t memory_size(void);

/*
 * The lowest memory limit of the process's cgroups, v1 and v2; UINT64_MAX if there
 * is none.  /proc/self/cgroup and /sys/fs/cgroup are looked for below `root`: "" for
 * those of the system.
 */
uint64_t memory_cgroup_limit(const char *root);

#endif
