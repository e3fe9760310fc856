/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_DERIVE_H
#define UCKPT_PACK_DERIVE_H

struct errmsg;
struct pack_inputs;

/*
 * Find the weights of a ZeRO tag's model files that follow from the optimizer's
 * master weights, and let their regions refer to these, if they are as large as
 * the inputs' least.  The writer compares them.  A directory that cannot be
 * understood as a tag is left as it is; the only error is -ENOMEM.
 */
int pack_derive(struct pack_inputs *x, struct errmsg *err);

#endif
