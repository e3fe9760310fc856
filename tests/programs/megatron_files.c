/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a checkpoint in Megatron's names against files of Megatron-DeepSpeed.
 *
 *     megatron_files tree HF MEGATRON WIDTH HEADS
 *         check that two universal trees of the same state are equal except for names,
 *         transposed matrices, and the order of rows of query_key_value.  HEADS is 0
 *         for thirds.
 *     megatron_files keys FILE
 *         print the names and kinds in a file, a line for each, two levels deep
 *
 * The table below does not come from the trainer.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "tests/support/context.h"

enum form { SAME, TRANSPOSED, FUSED };

static const struct {
	const char *hf, *megatron;
	enum form form;
} block[] = {
	{ "ln_1.weight", "input_layernorm.weight", SAME },
	{ "ln_1.bias", "input_layernorm.bias", SAME },
	{ "attn.c_attn.weight", "self_attention.query_key_value.weight", FUSED },
	{ "attn.c_attn.bias", "self_attention.query_key_value.bias", FUSED },
	{ "attn.c_proj.weight", "self_attention.dense.weight", TRANSPOSED },
	{ "attn.c_proj.bias", "self_attention.dense.bias", SAME },
	{ "ln_2.weight", "post_attention_layernorm.weight", SAME },
	{ "ln_2.bias", "post_attention_layernorm.bias", SAME },
	{ "mlp.c_fc.weight", "mlp.dense_h_to_4h.weight", TRANSPOSED },
	{ "mlp.c_fc.bias", "mlp.dense_h_to_4h.bias", SAME },
	{ "mlp.c_proj.weight", "mlp.dense_4h_to_h.weight", TRANSPOSED },
	{ "mlp.c_proj.bias", "mlp.dense_4h_to_h.bias", SAME },
};

static const char *const states[] = { "fp32", "exp_avg", "exp_avg_sq" };

static const char *hf_tree, *megatron_tree;
static uint64_t width, heads;
static unsigned compared;

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
	fprintf(stderr, "megatron_files: %s: %s\n", what, why);
	exit(1);
}

struct floats {
	float *v;
	uint64_t rows, columns, numel;
};

/* Read a tensor of a tree; a 1-D one has one row. */
static struct floats read_floats(const char *tree, const char *name,
				 const char *state)
{
	struct errmsg err = { "" };
	struct floats f;
	struct ptfile pt;
	struct tensor t;
	char path[PATH_MAX];
	uint64_t at;

	snprintf(path, sizeof(path), "%s/zero/%s/%s.pt", tree, name, state);
	if (io_open_pt(test_context(), path, NULL, &pt, &err) ||
	    ptfile_tensor(&pt, value_find(pt.root, "param"), name, &t, &at, &err))
		die(path, err.text);
	f = (struct floats){ .v = malloc(t.numel * sizeof(float)),
			     .rows = t.ndim == 2 ? t.shape[0] : 1,
			     .columns = t.shape[t.ndim - 1],
			     .numel = t.numel };
	if (!f.v || t.dtype != DTYPE_F32 ||
	    source_read(&pt.src, f.v, t.numel * sizeof(float),
			at + t.storage_offset * sizeof(float), &err))
		die(path, err.text);
	ptfile_close(&pt);
	return f;
}

/* Return Megatron's row for column `c` of c_attn: queries, keys, values, or those of each head. */
static uint64_t fused_row(uint64_t c)
{
	const uint64_t kind = c / width, in_kind = c % width;
	const uint64_t size = heads ? width / heads : width;

	return in_kind / size * 3 * size + kind * size + in_kind % size;
}

static float theirs(const struct floats *m, enum form form, uint64_t row,
		    uint64_t column)
{
	if (form == SAME)
		return m->v[row * m->columns + column];
	if (form == FUSED)
		column = fused_row(column);
	return m->rows == 1 ? m->v[column] : m->v[column * m->columns + row];
}

static void compare(const char *hf, const char *megatron, enum form form)
{
	for (unsigned s = 0; s < 3; s++) {
		struct floats a = read_floats(hf_tree, hf, states[s]);
		struct floats b =
			read_floats(megatron_tree, megatron, states[s]);
		const bool turned = form != SAME && a.rows > 1;

		if (a.numel != b.numel ||
		    a.columns != (turned ? b.rows : b.columns))
			die(megatron, "another shape");
		for (uint64_t i = 0; i < a.numel; i++)
			if (theirs(&b, form, i / a.columns, i % a.columns) !=
			    a.v[i])
				die(megatron, states[s]);
		free(a.v);
		free(b.v);
		compared++;
	}
}

static void compare_trees(bool pipe)
{
	char hf[256], megatron[256], path[PATH_MAX];
	unsigned layer;

	compare("transformer.wte.weight",
		pipe ? "tied_modules.embed.word_embeddings.weight"
		     : "language_model.embedding.word_embeddings.weight",
		SAME);
	compare("transformer.wpe.weight",
		pipe ? "tied_modules.embed.position_embeddings.weight"
		     : "language_model.embedding.position_embeddings.weight",
		SAME);
	for (layer = 0;; layer++) {
		DIR *dir;

		snprintf(path, sizeof(path),
			 "%s/zero/transformer.h.%u.ln_1.bias", hf_tree, layer);
		dir = opendir(path);
		if (!dir)
			break;
		closedir(dir);
		for (unsigned i = 0; i < sizeof(block) / sizeof(*block); i++) {
			snprintf(hf, sizeof(hf), "transformer.h.%u.%s", layer,
				 block[i].hf);
			snprintf(megatron, sizeof(megatron), "%s%u.%s",
				 pipe ? "" : "language_model.encoder.layers.",
				 pipe ? layer + 2 : layer, block[i].megatron);
			compare(hf, megatron, block[i].form);
		}
	}
	for (unsigned i = 0; i < 2; i++) {
		const char *kind = i ? "bias" : "weight";

		snprintf(hf, sizeof(hf), "transformer.ln_f.%s", kind);
		if (pipe)
			snprintf(megatron, sizeof(megatron), "%u.%s", layer + 2,
				 kind);
		else
			snprintf(megatron, sizeof(megatron),
				 "language_model.encoder.final_layernorm.%s",
				 kind);
		compare(hf, megatron, SAME);
	}
	printf("%u tensors\n", compared);
}

static bool is_pipe(void)
{
	char path[PATH_MAX];
	DIR *dir;

	snprintf(path, sizeof(path),
		 "%s/zero/tied_modules.embed.word_embeddings.weight",
		 megatron_tree);
	dir = opendir(path);
	if (dir)
		closedir(dir);
	return dir;
}

/* Print the pairs of a dict or an object's state, or the items of a list, below `prefix`. */
static void print_below(const struct value *v, const char *prefix, int depth)
{
	const struct value_dict *pairs = value_pairs(
		v->kind == VALUE_NEWOBJ && v->obj->state ? v->obj->state : v);
	const struct value_seq *items = value_items(v);
	char name[512];

	for (size_t i = 0; pairs && i < pairs->n; i++) {
		if (pairs->v[i].key->kind == VALUE_INT)
			snprintf(name, sizeof(name), "%s%" PRId64, prefix,
				 pairs->v[i].key->i);
		else
			snprintf(name, sizeof(name), "%s%s", prefix,
				 value_cstr(pairs->v[i].key));
		printf("%s %s\n", name, value_kind_name(pairs->v[i].val));
		strncat(name, "/", sizeof(name) - strlen(name) - 1);
		if (depth)
			print_below(pairs->v[i].val, name, depth - 1);
	}
	for (size_t i = 0; !pairs && items && i < items->n; i++) {
		snprintf(name, sizeof(name), "%s%zu/", prefix, i);
		if (value_pairs(items->v[i]))
			print_below(items->v[i], name, depth);
	}
}

int main(int argc, char **argv)
{
	struct errmsg err = { "" };
	struct ptfile pt;

	if (argc == 6 && strcmp(argv[1], "tree") == 0) {
		hf_tree = argv[2];
		megatron_tree = argv[3];
		width = strtoull(argv[4], NULL, 10);
		heads = strtoull(argv[5], NULL, 10);
		compare_trees(is_pipe());
		return 0;
	}
	if (argc != 3 || strcmp(argv[1], "keys") != 0)
		die("usage", "tree HF MEGATRON WIDTH HEADS, or keys FILE");
	if (io_open_pt(test_context(), argv[2], NULL, &pt, &err))
		die(argv[2], err.text);
	print_below(pt.root, "", 3);
	ptfile_close(&pt);
	return 0;
}
