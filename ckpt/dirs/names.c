/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of checkpoint files: deepspeed/runtime/engine.py
 * (_get_ckpt_name, _get_zero_ckpt_name) and checkpoint/constants.py.  Numbers
 * are parsed as numbers: DeepSpeed sorts some of these names as strings and
 * goes wrong from 100 ranks on.
 */
#include "ckpt/dirs/names.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

/* Skip `text` at `*s`, if it is there. */
static bool skip(const char **s, const char *text)
{
	const size_t n = strlen(text);

	if (strncmp(*s, text, n) != 0)
		return false;
	*s += n;
	return true;
}

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

bool names_ends_with(const char *s, const char *tail)
{
	const size_t n = strlen(s), t = strlen(tail);

	return n >= t && strcmp(s + n - t, tail) == 0;
}

/* The rank on the axis "model" of a pipeline's topology, which may have others
 * ("-expert_01-model_00"), or not that one. */
static unsigned find_slice(const char *axes)
{
	const char *s = strstr(axes, "-model_");
	unsigned slice;

	return s && skip(&s, "-model_") && skip_number(&s, &slice) ? slice : 0;
}

/* Files of single layers and experts. */
static struct ckname parse_layer(const char *name)
{
	struct ckname r = { .kind = TAG_FILE_OTHER };
	const char *s = name;

	if (skip(&s, "layer_") && skip_number(&s, &r.layer) &&
	    names_ends_with(name, "model_states.pt")) {
		r.kind = TAG_FILE_LAYER;
		if (skip(&s, "_expert_") && skip_number(&s, &r.expert) &&
		    skip(&s, "_mp_rank_") && skip_number(&s, &r.mp) &&
		    strcmp(s, "_model_states.pt") == 0)
			r.kind = TAG_FILE_EXPERT;
		else
			r.mp = find_slice(s);
	} else if (strncmp(name, "expert_", 7) == 0 &&
		   names_ends_with(name, "_model_states.pt")) {
		r.kind = TAG_FILE_EXPERT_OLD;
	} else if (strncmp(name, "expp_rank_", 10) == 0 &&
		   names_ends_with(name, "optim_states.pt")) {
		r.kind = TAG_FILE_EXPERT_OPTIM;
	}
	return r;
}

bool names_is_swap_rank(const char *name, unsigned *rank)
{
	return skip(&name, "rank") && skip_number(&name, rank) && !*name;
}

bool names_is_swapped(const char *name)
{
	return names_ends_with(name, NAMES_SWAP_SUFFIX);
}

struct ckname names_parse(const char *name)
{
	struct ckname r = { .kind = TAG_FILE_OTHER };
	const char *s = name;
	unsigned dp, mp;

	if (skip(&s, "mp_rank_") && skip_number(&s, &mp) &&
	    strcmp(s, "_model_states.pt") == 0)
		return (struct ckname){ .kind = TAG_FILE_MODEL, .mp = mp };
	s = name;
	if (!skip(&s, "bf16_"))
		skip(&s, "fp16_");
	if (skip(&s, "zero_pp_rank_") && skip_number(&s, &dp) &&
	    skip(&s, "_mp_rank_") && skip_number(&s, &mp)) {
		r = (struct ckname){ .dp = dp, .mp = mp };
		/* The oldest files lack the underscore before "optim". */
		if (strcmp(s, "_optim_states.pt") == 0 ||
		    strcmp(s, "optim_states.pt") == 0)
			r.kind = TAG_FILE_OPTIM;
		else if (strcmp(s, "_model_states.pt") == 0)
			r.kind = TAG_FILE_MODEL3;
		return r.kind == TAG_FILE_OTHER ? (struct ckname){ 0 } : r;
	}
	return parse_layer(name);
}

bool names_is_file(const char *name)
{
	return *name && strlen(name) <= NAME_MAX && !strchr(name, '/') &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

bool names_is_param(const char *name)
{
	return names_is_file(name) && strcmp(name, "optimizer_state.pt") != 0;
}
