/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HFHUB_H
#define UCKPT_HFHUB_H

struct errmsg;

/*
 * Find the directory of a Hugging Face model on this machine: `name` is its path, or
 * ORGANISATION/MODEL, whose snapshot of the branch main is then looked for in
 * huggingface_hub's cache.  The caller frees `*dir`, an absolute path.  -ENOENT with a
 * message if there is neither, or -ENOMEM.
 */
int hfhub_find(const char *name, char **dir, struct errmsg *err);

#endif
