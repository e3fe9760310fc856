/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCPFS_H
#define UCKPT_DCPFS_H

#include "ckpt/base/access.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/source.h"

struct errmsg;
struct uckpt;

/*
 * Files as in packfs.h; and where a directory holds a distributed checkpoint, the two files
 * of a ZeRO checkpoint of one rank, which no disk has (dcp.h).  Everything above sees a
 * ZeRO checkpoint.  What is really there comes first: a directory with files of DeepSpeed
 * shows no others.
 */

/* As packfs_stat; a plain path leads to what is really there. */
int dcpfs_stat(struct uckpt *u, const char *path, bool plain, struct attrs *out,
	       struct errmsg *err);

/* As packfs_open; also as dcp_open. */
int dcpfs_open(struct uckpt *u, struct source *s, const char *path,
	       struct errmsg *err);

/* As packfs_list; without `packs` only what is really there. */
int dcpfs_list(struct uckpt *u, const char *path, bool packs, struct dirlist *out,
	       struct errmsg *err);

#endif
