/* SPDX-License-Identifier: Apache-2.0 */
/* Experts: their names on a rank and in the whole model, their places, and
 * checkpoints of random numbers of layers, ranks and experts. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/merge_rules.h"
#include "ckpt/views/view.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/random.h"
#include "tests/support/slices.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define MARK ".deepspeed_moe.experts.deepspeed_experts."

static void native_prefixes_are_found_in_keys(void **state)
{
	static const struct {
		const char *key;
		unsigned expert;
		const char *prefix; /* NULL: not a key of this expert */
	} cases[] = {
		{ "moe.0" MARK "0.weight", 0, "moe.0" MARK },
		{ "a.b" MARK "17.fc.bias", 17, "a.b" MARK },
		/* experts inside experts: the inner ones count */
		{ "a" MARK "3.b" MARK "2.w", 2, "a" MARK "3.b" MARK },
		{ "a" MARK "3.b" MARK "2.w", 3, NULL },
		{ "moe.0" MARK "1.weight", 0, NULL },
		{ "moe.0" MARK "01.weight", 1, NULL },
		{ "moe.0" MARK ".weight", 0, NULL },
		{ "moe.0" MARK "0", 0, NULL },
		{ "moe.0" MARK "0weight", 0, NULL },
		{ "moe.0" MARK "99999999999999999999.w", 0, NULL },
		{ "moe.0.deepspeed_moe.gate.wg.weight", 0, NULL },
		{ "", 0, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const size_t n = experts_prefix_len(cases[i].key, cases[i].expert);
		const char *prefix = cases[i].prefix ? cases[i].prefix : "";

		if (n != strlen(prefix) || strncmp(cases[i].key, prefix, n) != 0)
			fail_msg("%s: %zu", cases[i].key, n);
	}
}

static void names_are_taken_apart_and_made(void **state)
{
	static const struct expert_layer native = { .prefix = "m" MARK };
	static const struct expert_layer fused = { .prefix = "m.experts", .fused = true };
	static const struct {
		const struct expert_layer *layer;
		const char *name;
		unsigned expert;
		const char *rest; /* expected rest; NULL: not of the layer */
		const char *key;  /* expected key of expert 5 */
	} cases[] = {
		{ &native, "m" MARK "0.weight", 0, ".weight", "m" MARK "5.weight" },
		{ &native, "m" MARK "12.a.b", 12, ".a.b", "m" MARK "5.a.b" },
		{ &native, "n" MARK "0.weight", 0, NULL, NULL },
		{ &native, "m" MARK "x.weight", 0, NULL, NULL },
		{ &native, "m" MARK, 0, NULL, NULL },
		{ &fused, "m.experts.w1", 0, ".w1", "m.experts.w1.5" },
		{ &fused, "m.experts.w3", 0, ".w3", "m.experts.w3.5" },
		{ &fused, "m.experts.w4", 0, NULL, NULL },
		{ &fused, "m.experts.w1.0", 0, NULL, NULL },
		{ &fused, "m.experts_w1", 0, NULL, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char key[EXPERT_NAME_MAX];
		unsigned expert;
		const char *rest;
		const bool ok = experts_parse(cases[i].layer, cases[i].name, &expert, &rest);

		if (ok != (cases[i].rest != NULL))
			fail_msg("%s", cases[i].name);
		if (!ok)
			continue;
		assert_int_equal(expert, cases[i].expert);
		assert_string_equal(rest, cases[i].rest);
		experts_key(cases[i].layer, 5, rest, key);
		assert_string_equal(key, cases[i].key);
	}
}

/* Check the placement of a layer of four experts on two ranks. */
static void check_placement(const struct expert_place *places, const char *slices, const char *runs)
{
	const struct expert_layer layer = {
		.prefix = "m.experts", .fused = true, .n = 4, .local = 2, .places = places
	};
	const struct merge rule = { .rule = MERGE_EXPERTS, .experts = &layer };
	struct errmsg err = { "" };
	struct mkpt m = { 0 };
	struct geometry g;
	struct slices l;

	slices_parse(&l, &m, slices);
	if (slices_geometry(&g, &rule, "m.experts.w1", &l, &err))
		fail_msg("%s", err.text);
	assert_int_equal(g.shape[0], 4);
	slices_check(&l, &g, runs, slices);
	geometry_done(&g);
	mkpt_done(&m);
}

static void experts_are_in_the_order_of_their_numbers(void **state)
{
	static const struct expert_place plain[] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } };
	/* rank 0 has experts 2 and 0, rank 1 has 3 and 1 */
	static const struct expert_place mixed[] = { { 0, 1 }, { 1, 1 }, { 0, 0 }, { 1, 0 } };

	check_placement(plain, "[[2,3],[2,3]]", "0:0-5 1:0-5");
	check_placement(mixed, "[[2,3],[2,3]]", "0:3-5 1:3-5 0:0-2 1:0-2");
	check_placement(mixed, "[[2],[2]]", "0:1 1:1 0:0 1:0");
	check_placement(mixed, "[[2,1,2],[2,1,2]]", "0:2-3 1:2-3 0:0-1 1:0-1");
}

static void ranks_must_hold_what_the_layer_says(void **state)
{
	static const struct expert_place places[] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } };
	static const struct expert_layer layer = { .n = 4, .local = 2, .places = places };
	static const struct merge rule = { .rule = MERGE_EXPERTS, .experts = &layer };
	static const char *const cases[] = {
		"[[2,3]]",       "[[2,3],[2,3],[2,3]]", "[[4,3],[4,3]]",
		"[[2,3],[2,4]]", "[[2,3],[2]]",         "[[],[]]",
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err = { "" };
		struct mkpt m = { 0 };
		struct geometry g;
		struct slices l;

		slices_parse(&l, &m, cases[i]);
		assert_int_equal(slices_geometry(&g, &rule, "w", &l, &err), -EBADMSG);
		assert_non_null(strstr(err.text, "2 experts on each of 2"));
		mkpt_done(&m);
	}
}

#define LAYERS_MAX 3
#define EXPERTS_LOCAL_MAX 3
#define PARAMS_MAX 256

struct mixture {
	struct mkckpt c;
	struct mkckpt_layer layers[LAYERS_MAX];
	char prefixes[LAYERS_MAX][64];
	unsigned orders[LAYERS_MAX][64];
	struct mkckpt_param params[PARAMS_MAX];
	char names[PARAMS_MAX][96];
	uint64_t seed;
};

static unsigned below(struct mixture *x, unsigned n)
{
	return (unsigned)(test_random(&x->seed) % n);
}

static struct mkckpt_param *add_param(struct mixture *x, unsigned group)
{
	const size_t i = x->c.nparams++;

	assert_true(i < PARAMS_MAX);
	x->params[i] = (struct mkckpt_param){ .name = x->names[i], .group = group };
	return &x->params[i];
}

static void set_shape(struct mkckpt_param *p, unsigned ndim, uint64_t a, uint64_t b, uint64_t c)
{
	const uint64_t shape[] = { a, b, c };

	p->ndim = ndim;
	memcpy(p->shape, shape, sizeof(shape));
}

/* Add a native layer, all of whose experts are alike. */
static void add_native(struct mixture *x, const struct mkckpt_layer *l, unsigned group)
{
	const unsigned rows = 1 + below(x, 7), cols = 1 + below(x, 5);

	for (unsigned e = 0; e < l->n; e++) {
		struct mkckpt_param *p = add_param(x, group);

		snprintf((char *)p->name, sizeof(x->names[0]), "%s%u.weight", l->prefix, e);
		set_shape(p, 2, rows, cols, 0);
		p = add_param(x, group);
		snprintf((char *)p->name, sizeof(x->names[0]), "%s%u.bias", l->prefix, e);
		set_shape(p, 1, rows, 0, 0);
	}
}

static void add_fused(struct mixture *x, const struct mkckpt_layer *l, unsigned group)
{
	const unsigned rows = 1 + below(x, 7), cols = 1 + below(x, 5);

	for (unsigned w = 1; w <= 3; w++) {
		struct mkckpt_param *p = add_param(x, group);

		snprintf((char *)p->name, sizeof(x->names[0]), "%s.w%u", l->prefix, w);
		set_shape(p, 3, l->n, w == 2 ? cols : rows, w == 2 ? rows : cols);
	}
}

static void shuffle(struct mixture *x, unsigned *order, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		const unsigned k = below(x, i + 1);

		order[i] = order[k];
		order[k] = i;
	}
}

static void add_layer(struct mixture *x, unsigned ep, unsigned group)
{
	const size_t i = x->c.nlayers++;
	struct mkckpt_layer *l = &x->layers[i];

	*l = (struct mkckpt_layer){
		.prefix = x->prefixes[i],
		.fused = x->c.stage == 3 || below(x, 2),
		.n = ep * (1 + below(x, EXPERTS_LOCAL_MAX)),
		.ep = ep,
	};
	snprintf(x->prefixes[i], sizeof(x->prefixes[i]),
		 l->fused ? "layer.%zu.experts" : "layer.%zu" MARK, i);
	if (l->fused && below(x, 2)) {
		shuffle(x, x->orders[i], l->n);
		l->order = x->orders[i];
	}
	if (l->fused)
		add_fused(x, l, group);
	else
		add_native(x, l, group);
}

/* Group 0 is dense. Layers of one degree share the next group, as in DeepSpeed,
 * or have one each. */
static void make_mixture(struct mixture *x, uint64_t number)
{
	static const unsigned degrees[] = { 1, 2, 3, 4 };

	*x = (struct mixture){ .seed = number * UINT64_C(0x9e3779b97f4a7c15) | 1 };
	const unsigned ep = degrees[below(x, COUNT(degrees))];
	const bool shared = below(x, 2);
	const unsigned layers = 1 + below(x, LAYERS_MAX);

	x->c = (struct mkckpt){
		.stage = 1 + (int)below(x, 3),
		.ranks = ep * (1 + below(x, 3)),
		.params = x->params,
		.layers = x->layers,
		.data_first = below(x, 2),
		.padded = below(x, 2),
		.bf16 = below(x, 2),
		.seed = number,
	};
	x->c.align = x->c.stage < 3 && below(x, 2) ? 8 : 0;
	x->c.round_robin = x->c.stage < 3 && below(x, 2);
	for (unsigned i = 0; i < 3; i++) {
		struct mkckpt_param *p = add_param(x, 0);

		snprintf((char *)p->name, sizeof(x->names[0]), "dense.%u", i);
		set_shape(p, 2, 1 + below(x, 9), 1 + below(x, 9), 0);
	}
	for (unsigned i = 0; i < layers; i++)
		add_layer(x, ep, shared ? 1 : 1 + i);
	x->c.ngroups = shared ? 2 : 1 + layers;
}

static void check_mixture(uint64_t number)
{
	static const struct view_options options = { .crc_zero = true };
	struct mixture *x = calloc(1, sizeof(*x));
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct view *v;
	char why[1024];

	assert_non_null(x);
	make_mixture(x, number);
	mkckpt_write(&x->c, dir);
	if (view_open(test_context(), dir, &options, &v, &err))
		fail_msg("number %llu: %s", (unsigned long long)number, err.text);
	if (!mkckpt_check(&x->c, v, why, sizeof(why)))
		fail_msg("number %llu, stage %d, %u ranks of %u: %s", (unsigned long long)number,
			 x->c.stage, x->c.ranks, x->layers[0].ep, why);
	if (walk_view(v, &err))
		fail_msg("number %llu: %s", (unsigned long long)number, err.text);
	view_close(v);
	mkckpt_free_dir(dir);
	free(x);
}

/* Read what a rank records of a layer of two experts, which are stored with a scale. */
static void read_scaled(struct experts *x, struct arena *a, struct mkpt *m, const char *scale)
{
	struct errmsg err = { "" };
	char text[1024];

	snprintf(text, sizeof(text),
		 "{'num_experts': [2], 'ds_autoep_layers': [{'moe_layer_id': 0,"
		 " 'expert_key_prefix': 'm.experts', 'num_experts': 2, 'num_local_experts': 1,"
		 " 'ep_size': 2, 'affine_maps': {'version': 1, 'params': {'m.experts.w1':"
		 " {'logical_shape': [2, 3], 'ranks': {"
		 "0: {'pieces': [{'shape': [3], 'source': [0, [1]], 'dest': [0, [1]], 'scale': %s}]},"
		 "1: {'pieces': [{'shape': [3], 'source': [3, [1]], 'dest': [0, [1]], 'scale': %s}]}"
		 "}}}}}]}",
		 scale, scale);
	if (experts_init(x, a, literal_value(m, text), false, "f", &err))
		fail_msg("%s", err.text);
}

static void ranks_must_agree_on_scales(void **state)
{
	struct arena a = { 0 };
	struct mkpt m = { 0 };
	struct experts x, y, z;

	read_scaled(&x, &a, &m, "2.0");
	read_scaled(&y, &a, &m, "2.0");
	read_scaled(&z, &a, &m, "4.0");
	assert_true(experts_equal(&x, &y));
	assert_false(experts_equal(&x, &z));
	mkpt_done(&m);
	arena_done(&a);
}

/* Fill `text` with `layers` layers of `ranks` ranks with `maps` affine maps each. */
static void write_repeated(struct bytebuf *text, unsigned layers, unsigned ranks, unsigned maps)
{
	text->len = 0;
	bytebuf_add_format(text, "{'num_experts': [");
	for (unsigned i = 0; i < layers; i++)
		bytebuf_add_format(text, "1,");
	bytebuf_add_format(text, "], 'ds_autoep_layers': [");
	for (unsigned i = 0; i < layers; i++) {
		bytebuf_add_format(text,
				   "{'moe_layer_id': %u, 'expert_key_prefix': 'm', 'num_experts': 1,"
				   " 'num_local_experts': 1, 'ep_size': %u, 'expert_placement':"
				   " {'version': 1, 'num_experts': 1, 'ep_size': %u, 'ranks': [",
				   i, ranks, ranks);
		for (unsigned k = 0; k < ranks; k++)
			bytebuf_add_format(text, "{'rank': %u, 'experts': [0]},", k);
		bytebuf_add_format(text, "]}, 'affine_maps': {'version': 1, 'params': {");
		for (unsigned k = 0; k < maps; k++)
			bytebuf_add_format(text,
					   "'w%u': {'logical_shape': [1, 3], 'ranks': {0: {'pieces':"
					   " [{'shape': [3], 'source': [0, [1]], 'dest': [0, [1]]}]}}},",
					   k);
		bytebuf_add_format(text, "}}},");
	}
	bytebuf_add_format(text, "]}");
	bytebuf_add_u8(text, 0);
}

static void what_a_pickle_repeats_is_bounded(void **state)
{
	static const struct {
		unsigned layers, ranks, maps;
		const char *why; /* NULL: accepted */
	} cases[] = {
		{ 2, 1, 10, NULL },
		{ 2, 500001, 0, "more than 1000000 experts on the ranks of all layers" },
		{ 2, 1, 8193, "affine_maps: more than 16384 in all layers" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf text = { 0 };
		struct arena a = { 0 };
		struct mkpt m = { 0 };
		struct errmsg err = { "" };
		struct experts x;
		int rc;

		write_repeated(&text, cases[i].layers, cases[i].ranks, cases[i].maps);
		rc = experts_init(&x, &a, literal_value(&m, (char *)text.data), false, "f", &err);
		if (rc != (cases[i].why ? -E2BIG : 0) ||
		    (rc && !strstr(err.text, cases[i].why)))
			fail_msg("case %zu: %d: %s", i, rc, err.text);
		mkpt_done(&m);
		arena_done(&a);
		bytebuf_done(&text);
	}
}

/* One rank has the elements of an expert, the even ones first. */
#define STRIDED(n, half)                                                                          \
	"{'num_experts': [1], 'ds_autoep_layers': [{'moe_layer_id': 0, 'expert_key_prefix': 'm',"  \
	" 'num_experts': 1, 'num_local_experts': 1, 'ep_size': 1, 'affine_maps': {'version': 1,"   \
	" 'params': {'w': {'logical_shape': [1, " n "], 'ranks': {0: {'pieces': ["                 \
	"{'shape': [" half "], 'source': [0, [2]], 'dest': [0, [1]]},"                             \
	"{'shape': [" half "], 'source': [1, [2]], 'dest': [" half ", [1]]}]}}}}}}]}"

/* What many maps share is in memory once, and they are counted with all that is in them. */
static void what_maps_share_is_bounded(void **state)
{
	static const struct {
		char text[512];
		unsigned maps;
		const char *why; /* NULL: accepted */
	} cases[] = {
		{ STRIDED("4", "2"), 100, NULL },
		{ STRIDED("2097152", "1048576"), 7, NULL },
		{ STRIDED("2097152", "1048576"), 8,
		  "affine_maps: those of all layers have more than 16777216 pieces" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf text = { 0 };
		struct arena a = { 0 };
		struct mkpt m = { 0 };
		struct errmsg err = { "" };
		struct experts x;
		struct value *root, *maps;
		int rc;

		bytebuf_add(&text, cases[i].text, strlen(cases[i].text) + 1);
		root = literal_value(&m, (char *)text.data);
		maps = value_find_path(value_item(value_find(root, "ds_autoep_layers"), 0),
				       "affine_maps", "params", NULL);
		for (unsigned k = 1; k < cases[i].maps; k++)
			assert_true(value_put(&a, maps, arena_format(&a, "w%u", k),
					      value_find(maps, "w")));
		rc = experts_init(&x, &a, root, false, "f", &err);
		if (rc != (cases[i].why ? -E2BIG : 0) || (rc && !strstr(err.text, cases[i].why)))
			fail_msg("case %zu: %d: %s", i, rc, err.text);
		for (unsigned k = 1; !rc && k < cases[i].maps; k++) {
			const struct value_dict *d = value_pairs(x.layers[0].maps);

			assert_ptr_equal(d->v[k].val, d->v[0].val);
		}
		mkpt_done(&m);
		arena_done(&a);
		bytebuf_done(&text);
	}
}

static void any_mixture_is_put_together_again(void **state)
{
	for (uint64_t number = 1; number <= 120; number++)
		check_mixture(number);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(native_prefixes_are_found_in_keys),
		cmocka_unit_test(names_are_taken_apart_and_made),
		cmocka_unit_test(experts_are_in_the_order_of_their_numbers),
		cmocka_unit_test(ranks_must_hold_what_the_layer_says),
		cmocka_unit_test(ranks_must_agree_on_scales),
		cmocka_unit_test(what_a_pickle_repeats_is_bounded),
		cmocka_unit_test(what_maps_share_is_bounded),
		cmocka_unit_test(any_mixture_is_put_together_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
