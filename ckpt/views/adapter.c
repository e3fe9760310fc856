/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names are those of get_peft_model_state_dict (peft 0.21, utils/save_and_load.py, and the
 * tuners' _get_adapter_state_dict and _remove_adapter_name_from_key), which leaves out the
 * adapter's name:
 *
 *   PREFIX.lora_A.ADAPTER.weight	     PREFIX.lora_A.weight
 *   PREFIX.ia3_l.ADAPTER		     PREFIX.ia3_l
 *   PREFIX.lora_magnitude_vector.ADAPTER.weight  PREFIX.lora_magnitude_vector
 *   PREFIX.modules_to_save.ADAPTER.weight	     PREFIX.weight
 *   base_model.vera_A.ADAPTER		     base_model.vera_A
 *   prompt_encoder.ADAPTER.embedding.weight	     prompt_embeddings
 *
 * Other trained weights, such as biases, keep their names.
 */
#include "ckpt/views/adapter.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"

#define DEFAULT "default"

/* Prefix of the PeftModel, which may be anywhere in the program's own model. */
#define PEFT_MODEL "base_model."
#define PROMPTS "prompt_encoder."

/* A method's names of weights are PREFIX.KIND.ADAPTER.REST; KIND begins with one of these. */
enum { SAVED, TOKENS, MAGNITUDE, ADAPTION, PROMPT };
static const char *const kinds[] = {
	[SAVED] = "modules_to_save.",
	[TOKENS] = "trainable_tokens_",
	[MAGNITUDE] = "lora_magnitude_vector.",
	[ADAPTION] = "adaption_", /* has no adapter name */
	[PROMPT] = PROMPTS,
	"lora_",
	"ia3_",
	"adamss_",
	"beft_",
	"boft_",
	"c3a_",
	"deft_",
	"delora_",
	"fourierft_",
	"frod_",
	"glora_",
	"gralora_",
	"hada_",
	"hira_",
	"hra_",
	"lily_",
	"ln_tuning_",
	"lokr_",
	"miss_",
	"oft_",
	"osf_",
	"peanut_",
	"poly_",
	"psoft_",
	"pvera_",
	"randlora_",
	"road_",
	"shadow_",
	"shira_",
	"supertuning_",
	"tinylora_",
	"unilora_",
	"vblora_",
	"vera_",
	"waveft_",
};

_Static_assert(COUNT(kinds) <= 64, "adapters.methods has a bit for each");

/* Kinds that all layers share: PEFT saves the model's weight, base_model.KIND. */
static const char *const shared[] = {
	"frod_V.",     "frod_s_indices.",  "frod_s_size.",        "frod_U.", "pvera_A.", "pvera_B.",
	"tinylora_v.", "unilora_theta_d.", "vblora_vector_bank.", "vera_A.", "vera_B.",
};

/* Kinds with the adapter's name as the last component. */
static const char *const by_category[] = { "frod_V.", "frod_s_indices.", "frod_s_size." };

/* PEFT saves indices of shira_weight, which are in no state dict. */
#define SHIRA "shira_weight."

/* A weight's name, split around the adapter's name. */
struct parts {
	const char *begin;                 /* where the name in the PeftModel begins */
	const char *kind, *adapter, *rest; /* "lora_A.", "default", ".weight" */
	unsigned method;                   /* index in `kinds`, or the number of kinds if unknown */
};

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static bool is_one_of(const char *text, const char *const *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (begins(text, v[i]))
			return true;
	return false;
}

/* Is this the component that ends at `rest`? */
static bool is_component(const char *at, const char *rest, const char *text)
{
	return strlen(text) == (size_t)(rest - at) && begins(at, text);
}

/* Find `what` at the start of a component. */
static const char *find_component(const char *name, const char *what)
{
	const char *at = name;

	while ((at = strstr(at, what)) && at > name && at[-1] != '.')
		at++;
	return at;
}

/* The weights of PEFT's prompt encoders, with the names under which PEFT saves them.  NULL: PEFT
 * computes prompt_embeddings from them.  Other modules of these names do not count. */
static const struct {
	const char *rest, *key;
} prompts[] = {
	{ ".embedding.weight", "prompt_embeddings" },
	{ ".prefix_task_cols", "prefix_task_cols" },
	{ ".prefix_task_rows", "prefix_task_rows" },
	{ ".mlp_head.", NULL },
	{ ".lstm_head.", NULL },
	{ ".transform.", NULL },
	{ ".delta_embedding.", NULL },
	{ ".trainable_embedding", NULL },
	{ ".frozen_embedding", NULL },
};

static size_t find_prompt(const char *rest)
{
	size_t i = 0;

	while (i < COUNT(prompts) && !(prompts[i].key ? strcmp(rest, prompts[i].rest) == 0
						      : begins(rest, prompts[i].rest)))
		i++;
	return i;
}

/* Split at a component if it names a kind.  The weights of an unknown method are the trained ones
 * of "default". */
static bool split_at(struct parts *x, const char *at, bool trained)
{
	const char *end = strchr(at, '.');

	for (x->method = 0; x->method < COUNT(kinds); x->method++)
		if (begins(at, kinds[x->method]))
			break;
	x->kind = at;
	x->adapter = end ? end + 1 : NULL;
	if (x->method == ADAPTION) {
		x->adapter = DEFAULT;
		x->rest = x->adapter + strlen(DEFAULT);
		return !end;
	}
	if (!end)
		return false;
	if (is_one_of(at, by_category, COUNT(by_category)))
		x->adapter = strrchr(at, '.') + 1;
	x->rest = x->adapter + strcspn(x->adapter, ".");
	if (x->method == PROMPT)
		return find_prompt(x->rest) < COUNT(prompts);
	if (x->method == COUNT(kinds))
		return trained && is_component(x->adapter, x->rest, DEFAULT) &&
		       memchr(at, '_', (size_t)(end - at));
	/* A module of the model may have such a name, too. */
	return !is_component(x->adapter, x->rest, "weight") &&
	       !is_component(x->adapter, x->rest, "bias");
}

/* Split a name.  False if it is outside of a PeftModel; `kind` is NULL if it is not an
 * adapter's. */
static bool split(struct parts *x, const char *name, bool trained)
{
	const char *prompt = find_component(name, PROMPTS);
	const char *at = find_component(name, PEFT_MODEL);

	*x = (struct parts){ .begin = prompt ?: at };
	if (prompt && split_at(x, prompt, trained))
		return true;
	for (; at && (at = strchr(at, '.')); at++)
		if (split_at(x, at + 1, trained))
			return true;
	x->kind = NULL;
	x->begin = at = find_component(name, PEFT_MODEL);
	return at;
}

/* Is the adapted module one that transformers treats as embeddings? */
static bool is_embedding(const char *begin, const char *end)
{
	static const char *const names[] = { ".embed_tokens.", ".lm_head." };

	for (size_t i = 0; i < COUNT(names); i++)
		if ((size_t)(end - begin) >= strlen(names[i]) &&
		    begins(end - strlen(names[i]), names[i]))
			return true;
	return false;
}

static struct adapter *find(struct adapters *x, struct arena *a, const struct parts *p)
{
	struct adapter *one = x->v;

	for (; one < x->v + x->n; one++)
		if (is_component(p->adapter, p->rest, one->name))
			return one;
	if (x->n == ADAPTERS_MAX)
		return NULL;
	one->name = arena_strndup(a, p->adapter, (size_t)(p->rest - p->adapter));
	x->failed |= !one->name;
	x->n += !!one->name;
	return one->name ? one : NULL;
}

void adapters_add(struct adapters *x, struct arena *a, const char *weight, bool trained)
{
	struct adapter *one;
	struct parts p;
	uint64_t method;

	if (!split(&p, weight, trained) || !p.kind)
		return;
	method = p.method < COUNT(kinds) ? UINT64_C(1) << p.method : 0;
	/* A whole module is saved only together with the weights of a method. */
	if (!trained && !(x->methods & method))
		return;
	one = find(x, a, &p);
	if (!one)
		return;
	x->methods |= trained ? method : 0;
	one->trained |= trained && p.method != SAVED;
	one->of_tokens |= p.method == TOKENS;
	one->of_embeddings |=
		p.method != SAVED && p.method != PROMPT && is_embedding(p.begin, p.kind);
	if (p.method == PROMPT ? !prompts[find_prompt(p.rest)].key : begins(p.kind, SHIRA))
		one->computed = arena_strdup(a, weight);
}

const struct adapter *adapters_top(const struct adapters *x)
{
	const struct adapter *top = NULL, *own = NULL;

	for (const struct adapter *one = x->v; one < x->v + x->n; one++) {
		if (one->trained && (!top || strcmp(one->name, top->name) < 0))
			top = one;
		if (strcmp(one->name, DEFAULT) == 0)
			own = one;
	}
	return top && own ? own : top;
}

bool adapter_has_dir(const struct adapter *one)
{
	return strcmp(one->name, DEFAULT) != 0 && *one->name && !strchr(one->name, '/') &&
	       strlen(one->name) <= NAME_MAX && !one->computed;
}

bool adapter_adapts(const char *weight, const char *other, bool *is_adapter)
{
	/* transformers adapts a model without a PeftModel, but only by LoRA. */
	const char *lora = strstr(weight, ".lora_A.");
	const bool in_model = find_component(other, PEFT_MODEL);
	struct parts p, q;

	if (!split(&p, weight, true) || !p.kind)
		p = (struct parts){ .kind = lora ? lora + 1 : NULL };
	*is_adapter = p.kind;
	if (!p.kind || (split(&q, other, false) && q.kind))
		return false;
	return p.method == PROMPT ? in_model
				  : strncmp(weight, other, (size_t)(p.kind - weight)) == 0;
}

/* Does the adapter's file also have this weight of the adapted model? */
static bool is_saved(const struct adapters *x, const struct adapter *one, const char *begin,
		     bool trained)
{
	static const char base[] = "base_layer.";
	const char *at = find_component(begin, base);

	if (trained)
		return one == adapters_top(x);
	return one->of_embeddings && !one->of_tokens && at && is_embedding(begin, at) &&
	       !strchr(at + strlen(base), '.');
}

char *adapter_key(const struct adapters *x, const struct adapter *one, struct arena *a,
		  const char *weight, bool trained)
{
	struct parts p;
	const char *end;
	char *key;

	if (!split(&p, weight, trained))
		return NULL;
	if (!p.kind || (!trained && !(x->methods & UINT64_C(1) << p.method)))
		return is_saved(x, one, p.begin, trained) ? arena_strdup(a, p.begin) : NULL;
	if (!is_component(p.adapter, p.rest, one->name))
		return NULL;
	if (p.method == PROMPT) {
		end = prompts[find_prompt(p.rest)].key;
		return end ? arena_strdup(a, end) : NULL;
	}
	if (is_one_of(p.kind, shared, COUNT(shared)) && p.kind != p.begin + strlen(PEFT_MODEL))
		return NULL;
	if (p.method == ADAPTION)
		return arena_strdup(a, p.begin);
	if (p.method == MAGNITUDE)
		p.rest = "";
	/* Drop one of the two dots around the omitted part. */
	end = p.method == SAVED ? p.kind - 1 : p.adapter - 1;
	key = arena_alloc(a, (size_t)(end - p.begin) + strlen(p.rest) + sizeof("." DEFAULT));
	if (key)
		sprintf(key, "%.*s%s%s", (int)(end - p.begin), p.begin,
			begins(p.kind, "shadow_") ? "." DEFAULT : "", p.rest);
	return key;
}
