/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_HASH_H
#define UCKPT_PACK_HASH_H

/* xxHash, by the processor's widest vectors where the library can choose: every byte
 * of a pack is hashed twice on its way, and SSE2 takes 2.4 times as long as AVX2. */
#ifdef HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#endif
