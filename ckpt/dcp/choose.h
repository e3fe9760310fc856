/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_CHOOSE_H
#define UCKPT_DCP_CHOOSE_H

struct dcp_finder;

/*
 * Find which dict of a checkpoint is the model, once its optimizer is known: the one that
 * the context's `model` names, or the one that has the optimizer's parameters in the shapes
 * of their states, has a model's name, and lies nearest to the optimizer.  Sets f->model,
 * and notes in o->notes what else there is.  A dict that the caller chose and that has not
 * all of the optimizer's parameters has no optimizer.  -ENOTSUP if nothing tells which of
 * several it is, or if there is none.
 */
int dcp_choose_model(struct dcp_finder *f);

#endif
