/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows a rank without ZeRO as a rank of stage 1: its shard, and its pickled objects (see
 * table/rank_params.c and zero/shard.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/deepspeed.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/zero/shard_impl.h"
#include "ckpt/zero/stage0_build.h"

static bool describe_group(const struct stage0_group *from, struct shard *s, struct param_states *to)
{
	to->v = arena_alloc(&s->arena, (from->nstates + 1) * sizeof(*to->v));
	if (!to->v)
		return false;
	to->v[to->n++] =
		(struct param_state){ .name = "fp32", .dtype = DTYPE_F32, .requires_grad = true };
	for (size_t i = 0; i < from->nstates; i++)
		if (!shard_is_of_partition(&from->states[i]))
			to->v[to->n++] = from->states[i];
	return true;
}

int stage0_shard(const struct stage0_rank *r, const struct rank_params *c, struct shard *s,
		 struct partitioning *layout, const char *file, struct errmsg *err)
{
	const struct shard_reader own = { .s = s, .c = c, .layout = layout, .file = file, .err = err };
	int rc;

	*s = (struct shard){ .ngroups = r->ngroups, .ds_version = NAMES_DS_VERSION };
	s->groups = arena_alloc(&s->arena, (r->ngroups + 1) * sizeof(*s->groups));
	rc = s->groups ? shard_build_layout(&own) : errmsg_nomem(err, file);
	for (size_t g = 0; !rc && g < r->ngroups; g++) {
		s->groups[g].padding = !partition_filled(&layout->groups[g], 0);
		if (!describe_group(&r->groups[g], s, &s->groups[g].states))
			rc = errmsg_nomem(err, file);
	}
	if (rc)
		shard_done(s);
	return rc;
}

/* Append `numel` elements of a place, starting with number `first`. */
static bool add_at(const struct stage0_place *p, uint64_t first, uint64_t numel, enum dtype to,
		   struct extent_map *out)
{
	return extent_add_cast(out, numel, p->file, p->at + first * dtype_size(p->dtype), p->dtype,
			       to);
}

/* Append elements of a weight whose parts lie in several files. */
static bool add_pieces(const struct stage0_owned *x, const struct part_run *run,
		       struct extent_map *out)
{
	const uint64_t each = x->weight->numel / x->weight->shape[0];
	const uint64_t end = run->first + run->numel;
	bool ok = true;

	for (uint64_t at = run->first, n; ok && at < end; at += n) {
		n = each - at % each < end - at ? each - at % each : end - at;
		ok = add_at(&x->pieces[at / each], at % each, n, run->to, out);
	}
	return ok;
}

/* Return the expert-parallel rank that has the elements of a run. */
static const struct stage0_rank *peer_of(const struct stage0_rank *r, const struct part_run *run)
{
	const struct expert_layer *l = run->slice->layer;
	unsigned ep;

	if (!l || !r->npeers)
		return r;
	/* In a narrower layer, other ranks have the same experts. */
	ep = r->data_first ? run->ep * (r->npeers / experts_degree(l)) : run->ep;
	return ep == r->ep ? r : &r->peers[ep];
}

bool stage0_add_run(const struct stage0_rank *r, const struct part_run *run, struct extent_map *out)
{
	const struct stage0_group *g = &peer_of(r, run)->groups[run->slice->group];
	const struct stage0_owned *x = &g->params[run->slice->index];
	const struct stage0_place *p = x->places;

	for (size_t i = 0; i < g->nstates; i++)
		if (strcmp(g->states[i].name, run->state->name) == 0)
			p = &x->places[i + 1];
	return p == x->places && x->pieces ? add_pieces(x, run, out)
					   : add_at(p, run->first, run->numel, run->to, out);
}

/* The shapes of parameters by group. */
static struct value *shapes_value(const struct stage0_rank *r, struct arena *a)
{
	struct value *list = value_new(a, VALUE_LIST);

	for (size_t g = 0; g < r->ngroups; g++) {
		struct value *dict = value_new_ordered(a);

		for (size_t i = 0; i < r->groups[g].nparams; i++) {
			const struct stage0_owned *p = &r->groups[g].params[i];

			value_put(a, dict, p->name,
				  tensor_size_to_value(a, p->weight->shape, p->weight->ndim));
		}
		value_append(a, list, dict);
	}
	return list;
}

/* Return the further names of parameters. */
static struct value *ties_value(const struct stage0_rank *r, struct arena *a)
{
	struct value *dict = value_new(a, VALUE_DICT);

	for (size_t i = 0; i < r->ties.n; i++)
		value_put(a, dict, r->ties.v[i].name, r->ties.v[i].of);
	return dict;
}

void stage0_warn(const struct stage0_rank *r, const struct errmsg_sink *to)
{
	if (r->refused)
		errmsg_put(to, "weights are those of the model: the optimizer's are not read");
	else if (r->weights == DTYPE_BF16 || r->weights == DTYPE_F16)
		errmsg_put(to, "there are no fp32 master weights: parameters of 16 bits are widened");
	if (r->steps_differ)
		errmsg_put(to, "parameters of one group have made different numbers of steps: all"
			       " get that of the first");
}

struct value *stage0_model(const struct stage0_rank *r, struct value *old, struct arena *a)
{
	static const struct value_field set[] = {
		{ "optimizer", NULL },         { "param_shapes", NULL },
		{ KEY_SHARED_PARAMS, NULL },   { "dp_world_size", NULL },
		{ KEY_DS_CONFIG, NULL },       { KEY_DS_VERSION, NULL },
	};
	struct value *root = value_edit(a, old, set, COUNT(set));

	value_put(a, root, "optimizer", value_new(a, VALUE_NONE));
	value_put(a, root, "param_shapes", shapes_value(r, a));
	value_put(a, root, KEY_SHARED_PARAMS, ties_value(r, a));
	value_put(a, root, "dp_world_size", 1u);
	value_put(a, root, KEY_DS_CONFIG, deepspeed_stage1_config(a, value_find(old, KEY_DS_CONFIG)));
	value_put(a, root, KEY_DS_VERSION, NAMES_DS_VERSION);
	return a->failed ? NULL : root;
}

/* Return an integer from the fp16 section of DeepSpeed's configuration. */
static struct value *fp16_option(struct arena *a, const struct value *old, const char *key,
				 int64_t fallback)
{
	return value_find_path(old, KEY_DS_CONFIG, "fp16", key, NULL) ?: value_new_int(a, fallback);
}

/* Make the loss scaler of ZeRO's optimizers from the fields that a 16-bit optimizer's wrapper
 * saves; NULL if it saves none. */
static struct value *scaler(struct arena *a, const struct value *old, bool dynamic)
{
	const struct value *own = value_find(old, "optimizer");
	struct value *shift = fp16_option(a, old, "hysteresis", 2);
	const struct deepspeed_scaler s = {
		.scale = value_find(own, "cur_scale"),
		.dynamic = dynamic,
		.iteration = value_find(own, "cur_iter"),
		.last_overflow = value_find(own, "last_overflow_iter"),
		.factor = value_find(own, "scale_factor"),
		.window = value_find(own, "scale_window"),
		.minimum = fp16_option(a, old, "min_loss_scale", 1),
		.shift = shift,
		.hysteresis = shift,
		.consecutive = fp16_option(a, old, "consecutive_hysteresis", 0),
	};

	return s.scale ? deepspeed_scaler_object(a, &s) : NULL;
}

/* The states of the parameter that represents its group. */
static struct value *states_value(const struct stage0_group *g, const struct value *old,
				  struct arena *a)
{
	const struct value *own = value_numbered(value_find(stage0_torch(old), "state"), g->number);
	struct value *out = value_new(a, VALUE_DICT);

	for (size_t i = 0; i < g->nstates; i++)
		value_put(a, out, g->states[i].name, value_find(own, g->states[i].name));
	return out;
}

/* Make the record of AutoEP with tensor parallelism in ZeRO's shards from model states
 * (autoep_universal.py, make_folding_metadata; engine.py, _autoep_param_family). */
static struct value *folding_value(const struct stage0_rank *r, struct value *old, struct arena *a)
{
	static const char *const families[][2] = { { ".experts.", "routed_expert" },
						   { ".router.", "router_gate_replicated" },
						   { ".shared_experts", "shared_expert" },
						   { "", "dense" } };
	struct value *params = value_new(a, VALUE_DICT);
	const struct value_field fields[] = {
		{ "zero_partition_group", value_new_str(a, "per_family") },
		{ "family", value_new_str(a, "zero_optimizer_state") },
		{ KEY_PARAM_FAMILIES, params },
	};

	for (size_t g = 0; g < r->ngroups; g++)
		for (size_t i = 0; i < r->groups[g].nparams; i++) {
			const char *name = r->groups[g].params[i].name;
			size_t k = 0;

			while (!strstr(name, families[k][0]))
				k++;

			const struct value_field own[] = {
				{ "family", value_new_str(a, families[k][1]) },
				{ "zero_partition_group", value_new_str(a, k ? "dense_dp" : "edp") },
				{ "zero_partition_rank", value_new_int(a, 0) },
				{ "zero_partition_count", value_new_int(a, 1) },
			};

			value_put(a, params, name, value_new_fields(a, own, COUNT(own)));
		}
	return value_edit(a, old, fields, COUNT(fields));
}

struct value *stage0_optimizer(const struct stage0_rank *r, struct value *old, struct arena *a)
{
	const struct value_seq *own = r->refused ? NULL : stage0_groups(old);
	const bool dynamic =
		value_is_true(value_find_path(old, "optimizer", "dynamic_loss_scale", NULL));
	struct value *loss = r->refused ? NULL : scaler(a, old, dynamic), *root;
	struct deepspeed_stage1_group *groups = arena_alloc(a, (r->ngroups + 1) * sizeof(*groups));
	const struct deepspeed_shard shard = {
		.loss_scaler = loss,
		.dynamic_loss_scale = loss ? value_new_bool(a, dynamic) : NULL,
		.overflow = loss ? value_new_bool(a, false) : NULL,
	};

	for (size_t g = 0; groups && g < r->ngroups; g++)
		groups[g] = (struct deepspeed_stage1_group){
			states_value(&r->groups[g], old, a),
			own && g < own->n ? own->v[g] : NULL,
		};
	root = groups ? deepspeed_stage1_file(a, groups, r->ngroups, shard,
					      value_find(old, KEY_DS_CONFIG))
		      : NULL;
	if (root && value_find_pairs(old, KEY_FOLDING))
		value_put(a, root, KEY_FOLDING,
			  folding_value(r, value_find(old, KEY_FOLDING), a));
	return a->failed ? NULL : root;
}
