/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's config.json for transformers, written into each checkpoint, where ucfs reads it for
 * its view of the weights.  Keys and defaults are GPT2Config's; omitted keys have the default that
 * this model uses.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/base/text.h"
#include "gpu/save/save_impl.h"

/* <|endoftext|> in GPT-2's vocabulary, which both begins and ends a text. */
#define END_OF_TEXT 50256u

/* The JSON text; NULL if out of memory. */
static char *config_text(const struct gpt2_config *m)
{
	const char *const token = m->vocab_size > END_OF_TEXT ? "50256" : "null";
	char epsilon[DECIMAL_TEXT_LEN], dropout[DECIMAL_TEXT_LEN], *text;
	const int n = asprintf(&text,
			       "{\n"
			       "\t\"architectures\":\t[\"GPT2LMHeadModel\"],\n"
			       "\t\"model_type\":\t\"gpt2\",\n"
			       "\t\"n_layer\":\t%u,\n"
			       "\t\"n_head\":\t%u,\n"
			       "\t\"n_embd\":\t%u,\n"
			       "\t\"vocab_size\":\t%u,\n"
			       "\t\"n_positions\":\t%u,\n"
			       "\t\"layer_norm_epsilon\":\t%s,\n"
			       "\t\"embd_pdrop\":\t%s,\n"
			       "\t\"attn_pdrop\":\t%s,\n"
			       "\t\"resid_pdrop\":\t%s,\n"
			       "\t\"activation_function\":\t\"gelu_new\",\n"
			       "\t\"tie_word_embeddings\":\ttrue,\n"
			       "\t\"bos_token_id\":\t%s,\n"
			       "\t\"eos_token_id\":\t%s\n"
			       "}\n",
			       m->n_layer, m->n_head, m->n_embd, m->vocab_size, m->n_positions,
			       decimal_text((double)m->layer_norm_epsilon, true, epsilon),
			       decimal_text((double)m->dropout, true, dropout), dropout, dropout,
			       token, token);

	return n < 0 ? NULL : text;
}

int save_config(const char *dir, const struct gpt2_config *m, struct errmsg *err)
{
	char *path = NULL, *text = config_text(m);
	int rc;

	if (!text || asprintf(&path, "%s/config.json", dir) < 0)
		rc = errmsg_nomem(err, NULL);
	else
		rc = write_text(path, text, err);
	free(path);
	free(text);
	return rc;
}
