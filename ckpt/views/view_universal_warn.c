/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings about a tag whose universal tree can be served. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/geometry.h"
#include "ckpt/views/adapter.h"
#include "ckpt/views/view_impl.h"

/* A parameter with this ending that the checkpoint, not the user, concatenates along dimension
 * 0; NULL if there is none. */
static const struct param *find_plain(const struct checkpoint *m, const char *suffix)
{
	const size_t len = strlen(suffix);

	for (size_t i = 0; i < m->nparams; i++) {
		const struct param *p = &m->params[i];
		const size_t n = strlen(p->name);

		if (n > len && strcmp(p->name + n - len, suffix) == 0 && p->merge.rule == MERGE_CAT &&
		    p->merge.dim == 0 && !p->merge.from_user && p->first)
			return p;
	}
	return NULL;
}

/* Megatron-DeepSpeed has a pattern for position embeddings only if embeddings are tied, although
 * all tensor-parallel ranks always have them whole. */
static void warn_of_positions(const struct checkpoint *m, const struct errmsg_sink *to)
{
	const struct param *p = find_plain(m, ".position_embeddings.weight");

	if (p && m->tp > 1 && p->ndim == 2)
		errmsg_put(to, "%s: no pattern of the checkpoint names it, so the"
			   " tree joins the copies of %u tensor-parallel ranks"
			   " to %" PRIu64 "x%" PRIu64 ", as the converter's"
			   " --no_strict does; it is %" PRIu64 "x%" PRIu64
			" with preset=megatron-qkv-thirds, preset=megatron-qkv-by-head or a rule of"
			   " tp_replicated_parameter_patterns",
			   p->name, m->tp, p->shape[0], p->shape[1], p->first->shape[0],
			   p->first->shape[1]);
}

/* Warn of facts that Megatron-DeepSpeed's files do not record: the converter guesses, and a
 * resume on another tensor-parallel size may be wrong without a message. */
static void warn_of_megatron(const struct checkpoint *m, const struct errmsg_sink *to)
{
	const struct param *qkv = find_plain(m, ".self_attention.query_key_value.weight");
	const struct param *row = find_plain(m, ".mlp.dense_4h_to_h.weight");

	if (!m->facts.has_uc_info || checkpoint_is_flat(m))
		return;
	if (qkv)
		errmsg_put(to, "%s: the order of its rows is not recorded; with"
			   " another tensor-parallel size Megatron-DeepSpeed"
			   " since December 2024 mixes Q, K and V up unless"
			   " preset=megatron-qkv-thirds is given"
			   " (preset=megatron-qkv-by-head: older versions)",
			   qkv->name);
	if (row && m->tp == 1)
		errmsg_put(to, "%s: a run on one tensor-parallel rank records no"
			   " row-parallel parameters; with more ranks it is cut"
			   " along the wrong dimension unless a megatron preset is given",
			   row->name);
	warn_of_positions(m, to);
}

/* Does the checkpoint have the frozen weights of the adapted modules? */
static bool has_adapted(const struct checkpoint *m, const char *weight, bool *is_adapter)
{
	bool has = m->facts.zero3 && m->facts.has_frozen;

	*is_adapter = false;
	for (size_t i = 0; !has && i < m->nparams && (!i || *is_adapter); i++)
		has = adapter_adapts(weight, m->params[i].name, is_adapter) && !m->params[i].first;
	return has;
}

/* Report frozen weights that the run left out, as PEFT's trainers do with
 * exclude_frozen_parameters: in stages 2 and 3 the files record it; in others the adapted
 * weights are missing. */
static void warn_of_frozen(const struct checkpoint *m, const struct errmsg_sink *to)
{
	bool is_adapter = false;

	for (size_t i = 0; !is_adapter && i < m->nparams; i++)
		if (m->params[i].first && !has_adapted(m, m->params[i].name, &is_adapter) &&
		    is_adapter) {
			errmsg_put(to, "%s: a run of PEFT that saved no frozen weights: the"
				   " views have only the trained ones",
				   m->params[i].name);
			return;
		}
	if (m->facts.excludes_frozen)
		errmsg_put(to, "the run saved no frozen weights"
			       " (exclude_frozen_parameters): if it has any, the views lack them");
}

static void warn_of_model(const struct view *v, const struct errmsg_sink *to)
{
	const struct checkpoint *m = v->c;
	struct errmsg why;

	if (m->facts.round_robin)
		errmsg_put(to, "round_robin_gradients was on: DeepSpeed"
			       " scrambles every universal tree in an engine"
			       " where it is on; turn it off to resume from the"
			       " universal tree, or resume from TAG_dpN");
	if (m->scaled)
		errmsg_put(to,
		"pieces of %s are scaled: its moments are correct only if lr and eps are scaled as"
			   " well",
			   m->scaled->name);
	if (v->options.rules && checkpoint_is_flat(m))
		errmsg_put(to, "merge rules do not apply: ZeRO-3 without tensor"
			       " parallelism has whole parameters");
	if (checkpoint_check_rows(m, false, &why))
		errmsg_put(to, "%s", why.text);
	warn_of_megatron(m, to);
	warn_of_frozen(m, to);
}

void view_universal_warn(struct view *v, const struct errmsg_sink *to)
{
	const struct checkpoint *c = v->c;
	const char *text;
	size_t pos = 0;

	warn_of_model(v, to);
	c->ops->warn(c, to);
	for (size_t i = c->nparams; i < c->nparams + c->nmore; i++)
		errmsg_put(to, "%s: %s: only in the view dcp: %s is no type of real numbers",
			   c->files[c->params[i].module->file].path, c->params[i].name,
			   dtype_name(c->params[i].module->dtype));
	while (c->rules && (text = merge_rules_next_unused(c->rules, &pos)))
		errmsg_put(to, "a pattern of merge rules matches no parameter: %s", text);
}
