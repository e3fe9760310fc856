/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names are those of get_peft_model_state_dict (peft 0.21, utils/save_and_load.py),
 * which leaves out the adapter's:
 *
 *   PREFIX.lora_A.ADAPTER.weight	     PREFIX.lora_A.weight
 *   PREFIX.lora_embedding_A.ADAPTER	     PREFIX.lora_embedding_A
 *   PREFIX.lora_magnitude_vector.ADAPTER.weight  PREFIX.lora_magnitude_vector
 *   PREFIX.modules_to_save.ADAPTER.weight	     PREFIX.weight
 *   PREFIX.trainable_tokens_delta.ADAPTER    PREFIX.trainable_tokens_delta
 *
 * Other weights that are trained, such as biases, keep their names.
 */
#include "ckpt/weights/adapter.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/model/model.h"

#define LORA "lora_"
#define MAGNITUDE "lora_magnitude_vector."
#define SAVED "modules_to_save."
#define TOKENS "trainable_tokens_delta."

/* The PeftModel, wherever in the program's own model. */
#define PEFT_MODEL "base_model.model."

/* A weight's name around that of its adapter. */
struct parts {
	const char *begin; /* of the name in the PeftModel */
	const char *kind, *adapter, *rest; /* "lora_A.", "default", ".weight" */
};

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* Split a name.  False if it is outside of a PeftModel; `kind` is NULL if it is no
 * adapter's. */
static bool split(const char *name, struct parts *out)
{
	const char *at = strstr(name, PEFT_MODEL);

	*out = (struct parts){ .begin = at };
	for (; at && (at = strchr(at, '.')); at++) {
		const char *const kind = at + 1, *const end = strchr(kind, '.');

		if (!end || !(begins(kind, LORA) || begins(kind, SAVED) ||
			      begins(kind, TOKENS)))
			continue;
		out->kind = kind;
		out->adapter = end + 1;
		out->rest = out->adapter + strcspn(out->adapter, ".");
		break;
	}
	return out->begin;
}

bool adapter_find(const struct model *m, char adapter[NAME_MAX + 1])
{
	struct parts x;

	for (size_t i = 0; i < m->nparams; i++) {
		if (m->params[i].module || !split(m->params[i].name, &x) ||
		    !x.kind || !begins(x.kind, LORA))
			continue;
		snprintf(adapter, NAME_MAX + 1, "%.*s", (int)(x.rest - x.adapter),
			 x.adapter);
		return true;
	}
	return false;
}

char *adapter_key(struct arena *a, const char *adapter, const char *name, bool trained)
{
	struct parts x;
	const char *end;
	char *key;

	if (!split(name, &x) || (!x.kind && !trained))
		return NULL;
	if (!x.kind)
		return arena_strdup(a, x.begin);
	if (strlen(adapter) != (size_t)(x.rest - x.adapter) ||
	    !begins(x.adapter, adapter))
		return NULL;
	if (begins(x.kind, MAGNITUDE))
		x.rest = "";
	/* Without one of the points beside what is left out. */
	end = begins(x.kind, SAVED) ? x.kind - 1 : x.adapter - 1;
	key = arena_alloc(a, (size_t)(end - x.begin) + strlen(x.rest) + 1);
	if (key)
		sprintf(key, "%.*s%s", (int)(end - x.begin), x.begin, x.rest);
	return key;
}
