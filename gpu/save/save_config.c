/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's config.json for transformers, written into each checkpoint, where
 * ucfs finds it for its view of the weights.  Keys and defaults are
 * GPT2Config's; omitted keys have the default that this model uses.
 */
#include <cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "gpu/save/save_impl.h"

/* <|endoftext|> in GPT-2's vocabulary, which both begins and ends a text. */
#define END_OF_TEXT 50256u

/* The shortest decimal that rounds to `f`, as a double: 0.1 for 0.1f. */
static double decimal_of(float f)
{
	char text[32];

	for (int digits = 6; digits < 9; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, (double)f);
		if (strtof(text, NULL) == f)
			return strtod(text, NULL);
	}
	return (double)f;
}

static void add_token(cJSON *o, const char *key, const struct gpt2_config *m)
{
	if (m->vocab_size > END_OF_TEXT)
		cJSON_AddNumberToObject(o, key, END_OF_TEXT);
	else
		cJSON_AddNullToObject(o, key);
}

/* The JSON text, ending in a newline; NULL if out of memory. */
static char *config_text(const struct gpt2_config *m)
{
	static const char *const architecture = "GPT2LMHeadModel";
	cJSON *o = cJSON_CreateObject();
	const double dropout = decimal_of(m->dropout);
	const struct {
		const char *key;
		double value;
	} numbers[] = {
		{ "n_layer", m->n_layer },
		{ "n_head", m->n_head },
		{ "n_embd", m->n_embd },
		{ "vocab_size", m->vocab_size },
		{ "n_positions", m->n_positions },
		{ "layer_norm_epsilon", decimal_of(m->layer_norm_epsilon) },
		{ "embd_pdrop", dropout },
		{ "attn_pdrop", dropout },
		{ "resid_pdrop", dropout },
	};
	char *json, *text = NULL;

	cJSON_AddItemToObject(o, "architectures",
			      cJSON_CreateStringArray(&architecture, 1));
	cJSON_AddStringToObject(o, "model_type", "gpt2");
	for (size_t i = 0; i < COUNT(numbers); i++)
		cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value);
	cJSON_AddStringToObject(o, "activation_function", "gelu_new");
	cJSON_AddBoolToObject(o, "tie_word_embeddings", true);
	add_token(o, "bos_token_id", m);
	add_token(o, "eos_token_id", m);
	json = cJSON_Print(o);
	cJSON_Delete(o);
	if (json && asprintf(&text, "%s\n", json) < 0)
		text = NULL;
	cJSON_free(json);
	return text;
}

int save_config(const struct save_job *c, struct errmsg *err)
{
	char path[PATH_MAX];
	char *text;
	int rc;

	if (snprintf(path, sizeof(path), "%s/config.json", c->path) >= PATH_MAX)
		return errmsg_set(err, -ENAMETOOLONG, "%s: name too long",
				  c->o.dir);
	text = config_text(&c->o.config->model);
	if (!text)
		return errmsg_nomem(err, NULL);
	rc = outfile_write_text(path, text, err);
	free(text);
	return rc;
}
