/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEX_H
#define UCKPT_INDEX_H

#include "ckpt/base/bytes.h"

struct bytebuf;
struct errmsg;
struct rank_params;
struct tagdir;

/*
 * The parameter tables of a tag as bytes, so that the next mount need not parse
 * the model-states files and the experts' files.  (On 20,000 parameters parsing
 * takes four times as long as reading the index.)  The identities of all files of
 * the directory come first; the bytes are valid for these files only.  Profiles
 * follow (index_profile.h); other optimizer shards are not in the index: each is
 * parsed when it is first needed, in under a millisecond.
 */

/* Append the tables of all model-parallel ranks.  -ENOTSUP or -E2BIG for merge
 * rules that pickle_dump cannot write, -ENOMEM. */
int index_write(const struct tagdir *dir, const struct rank_params *ranks,
		struct bytebuf *out, struct errmsg *err);

/*
 * Fill in `ranks`, an array of dir->mp_degree zeroed tables.  `bytes` is then
 * what follows.  The bytes are trusted no more than a model-states file: names,
 * sizes and offsets pass the same checks.  -ESTALE if they belong to other files
 * or to another version of ucfs, -EBADMSG if they are damaged, -ENOMEM; then
 * nothing is filled in.
 */
int index_read(const struct tagdir *dir, struct rank_params *ranks,
	       struct span *bytes, struct errmsg *err);

#endif
