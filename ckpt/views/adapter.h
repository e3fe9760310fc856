/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ADAPTER_H
#define UCKPT_ADAPTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"

/* The files of an adapter. */
#define ADAPTER_WEIGHTS "adapter_model.safetensors"
#define ADAPTER_CONFIG "adapter_config.json"

/* An adapter of PEFT. */
struct adapter {
	const char *name; /* "default" unless the program chose another */
	bool trained;     /* the optimizer has parameters of it */
	/* A weight that PEFT only uses to compute what it saves; NULL: it saves all weights
	 * unchanged. */
	const char *computed;
	bool of_tokens;     /* it trains single rows of embeddings */
	bool of_embeddings; /* it adapts whole embeddings, so PEFT saves the original ones, too */
};

/* Limit of adapters; others are ignored. */
#define ADAPTERS_MAX 100

/* The adapters of a model, whatever their method.  Valid when zero-initialised. */
struct adapters {
	struct adapter v[ADAPTERS_MAX]; /* in the order of their first weights */
	size_t n;
	uint64_t methods; /* methods of the trained adapters */
	bool failed;      /* memory is short */
};

/*
 * Add the adapter that a weight belongs to, if any.  The names stay in the arena.  Call it for all
 * trained weights before the others: a frozen weight belongs to an adapter only if that has a
 * trained weight of the same method.
 */
void adapters_add(struct adapters *x, struct arena *a, const char *weight, bool trained);

/*
 * Return the adapter that PEFT's loaders expect at the top: "default"; or without it the trained
 * adapter that comes first by name.  NULL if no adapter is trained.
 */
const struct adapter *adapters_top(const struct adapters *x);

/* Can the adapter have a directory? Not if its name is invalid as a directory name; "default" needs
 * none. */
bool adapter_has_dir(const struct adapter *one);

/* Does `other`, which is not trained, belong to the module that a trained adapter's weight
 * adapts?  `is_adapter`: `weight` is an adapter's. */
bool adapter_adapts(const char *weight, const char *other, bool *is_adapter);

/*
 * Return the name that a weight has in adapter_model.safetensors of one of the adapters, in
 * the arena.  NULL if memory is short (a->failed), and for a weight that is not in this
 * file: one of another adapter or outside of the PeftModel, and most frozen ones of the
 * model that is adapted.
 */
char *adapter_key(const struct adapters *x, const struct adapter *one, struct arena *a,
		  const char *weight, bool trained);

#endif
