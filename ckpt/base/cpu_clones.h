/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CPU_CLONES_H
#define UCKPT_CPU_CLONES_H

#include <features.h> /* for __GLIBC__ */

/*
 * Compile a loop over elements for several generations of processors; glibc's indirect functions
 * choose the best one for the machine at program start. gcc since 12 has names for the generations;
 * older gcc, and clang since 14, need the names of CPU features.  Other compilers and systems have
 * one version.  So have sanitizers, which run before the choice can be made.
 */
#if !defined(__x86_64__) || !defined(__GLIBC__) || \
	defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CPU_CLONES
#elif defined(__clang__)
#if __clang_major__ >= 14 && !__has_feature(address_sanitizer) && \
	!__has_feature(thread_sanitizer) && !__has_feature(memory_sanitizer)
#define CPU_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CPU_CLONES
#endif
#elif __GNUC__ >= 12
#define CPU_CLONES                                                            \
	__attribute__((                                                       \
		target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), \
		noinline))
#else
#define CPU_CLONES \
	__attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#endif

#endif
