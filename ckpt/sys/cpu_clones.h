/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CPU_CLONES_H
#define UCKPT_CPU_CLONES_H

/*
 * A loop over elements is compiled for several generations of processors, and
 * the best that there is taken when the program starts.  Sanitizers run before
 * that choice can be made; clang does not know these generations here.
 */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && \
	!defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CPU_CLONES                                                            \
	__attribute__((                                                       \
		target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), \
		noinline))
#else
#define CPU_CLONES
#endif

#endif
