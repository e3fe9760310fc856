/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of checkpoint files: deepspeed/runtime/engine.py
 * (_get_ckpt_name, _get_zero_ckpt_name) and checkpoint/constants.py.  Numbers
 * are parsed as numbers: DeepSpeed sorts some of these names as strings and
 * goes wrong from 100 ranks on.
 */
#include "ckpt/format/names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"

/* The first matching row counts; the first row of a kind is the current name in DeepSpeed.
 * Capitals represent the numbers of struct ckname, a star any text. */
static const struct {
	const char *pattern;
	enum ckpt_file_kind kind;
} patterns[] = {
	{ "mp_rank_M_model_states.pt", CKPT_FILE_MODEL },
	{ "zero_pp_rank_D_mp_rank_M_optim_states.pt", CKPT_FILE_OPTIM },
	/* The oldest files lack an underscore. */
	{ "zero_pp_rank_D_mp_rank_Moptim_states.pt", CKPT_FILE_OPTIM },
	{ "zero_pp_rank_D_mp_rank_M_model_states.pt", CKPT_FILE_MODEL3 },
	{ "layer_L_expert_E_mp_rank_M_model_states.pt", CKPT_FILE_EXPERT },
	{ "layer_L-model_M-model_states.pt", CKPT_FILE_LAYER },
	{ "layer_L*model_states.pt", CKPT_FILE_LAYER },
	{ "expert_*_model_states.pt", CKPT_FILE_EXPERT_OLD },
	{ "expp_rank_D_mp_rank_M_optim_states.pt", CKPT_FILE_EXPERT_OPTIM },
};

static bool skip_number(const char **s, unsigned *out)
{
	unsigned v = 0;

	if (!isdigit((unsigned char)**s))
		return false;
	while (isdigit((unsigned char)**s)) {
		v = v * 10 + (unsigned)(*(*s)++ - '0');
		if (v > NAMES_RANK_MAX)
			return false;
	}
	*out = v;
	return true;
}

const char *names_in_tied(const char *name)
{
	const size_t n = strlen(NAMES_TIED);
	const char *dot = strncmp(name, NAMES_TIED, n) == 0 ? strchr(name + n, '.') : NULL;

	return dot ? dot + 1 : NULL;
}

bool names_ends_with(const char *s, const char *tail)
{
	const size_t n = strlen(s), t = strlen(tail);

	return n >= t && strcmp(s + n - t, tail) == 0;
}

/* Return the number that a capital represents. */
static unsigned *number_of(struct ckname *n, char capital)
{
	return capital == 'D'   ? &n->dp
	       : capital == 'M' ? &n->mp
	       : capital == 'L' ? &n->layer
	       : capital == 'E' ? &n->expert
				: NULL;
}

static bool matches(const char *pattern, const char *s, struct ckname *out)
{
	for (; *pattern && *pattern != '*'; pattern++) {
		unsigned *number = number_of(out, *pattern);

		if (number ? !skip_number(&s, number) : *s++ != *pattern)
			return false;
	}
	return *pattern ? names_ends_with(s, pattern + 1) : !*s;
}

bool names_is_swap_rank(const char *name, unsigned *rank)
{
	struct ckname r = { 0 };

	if (!matches("rankD", name, &r))
		return false;
	*rank = r.dp;
	return true;
}

struct ckname names_parse(const char *name)
{
	const char *axis = strstr(name, "-model_"), *s = name;

	if (strncmp(s, "bf16_zero_", 10) == 0 || strncmp(s, "fp16_zero_", 10) == 0)
		s += 5;
	for (size_t i = 0; i < COUNT(patterns); i++) {
		struct ckname r = { .kind = patterns[i].kind };

		if (!matches(patterns[i].pattern, s, &r))
			continue;
		/* A pipeline's topology may have other axes, too ("-expert_01-model_00"), or
		 * lack this one. */
		if (r.kind == CKPT_FILE_LAYER && axis) {
			axis += strlen("-model_");
			if (!skip_number(&axis, &r.mp) &&
			    strcmp(axis, "states.pt") != 0)
				break;
		}
		return r;
	}
	return (struct ckname){ 0 };
}

void names_format(struct ckname n, bool bf16, char name[NAME_MAX + 1])
{
	char *at = stpcpy(name, bf16 && n.kind == CKPT_FILE_OPTIM ? "bf16_" : "");
	size_t i = 0;

	while (patterns[i].kind != n.kind)
		i++;
	for (const char *p = patterns[i].pattern; *p; p++) {
		const unsigned *number = number_of(&n, *p);
		const int digits = *p == 'M' || p[1] == '-' ? 2 : 1;

		at += number ? sprintf(at, "%0*u", digits, *number) : sprintf(at, "%c", *p);
	}
}

static bool is_file(const char *name, size_t n)
{
	return n && n <= NAME_MAX && !memchr(name, '/', n) &&
	       !(name[0] == '.' && (n == 1 || (n == 2 && name[1] == '.')));
}

bool names_is_file(const char *name)
{
	return is_file(name, strlen(name));
}

const char *const names_dcp_pairs[DCP_PAIRS][2] = { { DCP_PAIR_MODEL, DCP_PAIR_OPTIMIZER },
						    { "model", "optimizer" },
						    { "model", "optim" } };

bool names_is_param(const char *name)
{
	const bool nested = strchr(name, '/');
	bool is = strcmp(name, "optimizer_state.pt") != 0;

	for (size_t n = strcspn(name, "/"); is; n = strcspn(name, "/")) {
		is = is_file(name, n) &&
		     !(nested && n > 2 && strncmp(name + n - 3, ".pt", 3) == 0);
		if (!name[n])
			break;
		name += n + 1;
	}
	return is;
}
