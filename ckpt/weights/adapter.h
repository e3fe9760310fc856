/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ADAPTER_H
#define UCKPT_ADAPTER_H

#include <limits.h>
#include <stdbool.h>

struct arena;
struct model;

/* An adapter that a run trains with LoRA in a PeftModel. */

/* Find the adapter's name in the model, by default "default".  False if the optimizer has
 * no parameter of LoRA. */
bool adapter_find(const struct model *m, char adapter[NAME_MAX + 1]);

/*
 * Return the name that a weight has in adapter_model.safetensors, in the arena.  NULL if
 * memory is short (a->failed), and for a weight that is not in this file: one of another
 * adapter or outside of the PeftModel, and a frozen one of the model that is adapted.
 */
char *adapter_key(struct arena *a, const char *adapter, const char *name, bool trained);

#endif
