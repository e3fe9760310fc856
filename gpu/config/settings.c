/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/config/config_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"

#define NAMES_LEN 64

bool setting_takes_value(const struct setting *s)
{
	return s->kind != SETTING_ON && s->kind != SETTING_HELP && s->kind != SETTING_VERSION;
}

bool setting_value_is_optional(const struct setting *s)
{
	return s->help[*s->help == '+'] == '[';
}

/* Return the names of a choice as a list. */
static const char *choice_names(const struct choice *choices, char names[NAMES_LEN])
{
	size_t n = 0;

	for (const struct choice *of = choices; of->name; of++)
		n += (size_t)snprintf(names + n, NAMES_LEN - n, "%s%s",
				      of == choices ? "" : of[1].name ? ", " : " or ", of->name);
	return names;
}

static void print_setting(const struct setting *s)
{
	const char *value = s->help + (*s->help == '+');
	const char *tab = strchr(value, '\t');
	char left[48], names[NAMES_LEN];

	snprintf(left, sizeof(left), "--%s%s%.*s", s->flag, *value == '[' ? "" : " ",
		 (int)(tab - value), value);
	printf("  %-34s %s", left, tab + 1);
	if (s->choices)
		printf("%s%s", tab[1] ? ": " : "", choice_names(s->choices, names));
	if (s->initial)
		printf(" (%s)", s->initial);
	puts("");
}

void settings_print(bool all)
{
	for (const struct setting *s = settings; s < settings + SETTINGS; s++)
		if (s->kind == SETTING_GROUP && all)
			printf("\n%s:\n", s->help);
		else if (s->flag && (all || *s->help == '+'))
			print_setting(s);
}

char **setting_text(struct config *c, const struct setting *s)
{
	const bool text = s->kind == SETTING_TEXT || s->kind == SETTING_NAME ||
			  s->kind == SETTING_MODEL || s->kind == SETTING_JSON ||
			  s->kind == SETTING_RESUME;

	return text ? (char **)((char *)c + s->at) : NULL;
}

uint64_t config_digest(struct config *c)
{
	uint64_t digest = 0;

	for (const struct setting *s = settings; s < settings + SETTINGS; s++) {
		char **const text = setting_text(c, s);
		const void *p = (const char *)c + s->at;
		size_t n = s->size;

		if (text) {
			const bool path = s->kind == SETTING_TEXT || s->kind == SETTING_RESUME;

			p = !*text ? "" : path ? "given" : *text;
			n = strlen(p);
		}
		digest = XXH3_64bits_withSeed(p, n, digest + (size_t)(s - settings));
	}
	return digest;
}

/* Store a number, a choice or a truth value. */
static void setting_store(struct config *c, const struct setting *s, double value)
{
	void *const at = (char *)c + s->at;

	switch (s->kind) {
	case SETTING_U64:
		*(uint64_t *)at = (uint64_t)value;
		break;
	case SETTING_REAL:
		*(double *)at = value;
		break;
	case SETTING_FLOAT:
		*(float *)at = (float)value;
		break;
	case SETTING_ON:
		*(bool *)at = value != 0;
		break;
	default:
		*(unsigned *)at = (unsigned)value;
		break;
	}
}

static int set_number(struct config *c, const struct setting *s, const char *text,
		      struct errmsg *want)
{
	const bool whole = s->kind == SETTING_UINT || s->kind == SETTING_U64;
	char *end;
	const double value = strtod(text, &end);

	if (end == text || *end || !(value >= s->min && value <= s->max) ||
	    (whole && text[strspn(text, "0123456789")]))
		return errmsg_set(want, -EINVAL, "%s from %.16g to %.16g",
				  whole ? "an integer" : "a number", s->min, s->max);
	setting_store(c, s, value);
	return 0;
}

static int set_betas(const char *text, double *out, struct errmsg *want)
{
	for (int i = 0; i < 2; i++) {
		char *end;
		const double beta = strtod(text, &end);

		if (end == text || *end != (i ? '\0' : ',') || !(beta >= 0 && beta < 1))
			return errmsg_set(want, -EINVAL,
					  "two numbers from 0 to less than 1, such as 0.9,0.999");
		out[i] = beta;
		text = end + 1;
	}
	return 0;
}

static int set_choice(struct config *c, const struct setting *s, const char *text,
		      struct errmsg *want)
{
	char names[NAMES_LEN];

	for (const struct choice *of = s->choices; of->name; of++)
		if ((s->kind == SETTING_CHOICE_ANY_CASE ? strcasecmp(text, of->name)
							: strcmp(text, of->name)) == 0) {
			setting_store(c, s, of->value);
			return 0;
		}
	return errmsg_set(want, -EINVAL, "%s", choice_names(s->choices, names));
}

static int set_on(struct config *c, const struct setting *s, const char *text, struct errmsg *want)
{
	if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
		return errmsg_set(want, -EINVAL, "true or false");
	setting_store(c, s, *text == 't');
	return 0;
}

int setting_set_text(char **out, const char *text, struct errmsg *err)
{
	char *const copy = strdup(text);

	if (!copy)
		return errmsg_nomem(err, NULL);
	free(*out);
	*out = copy;
	return 0;
}

static int set_text(const struct setting *s, const char *text, char **out, struct errmsg *want)
{
	if (!*text)
		return errmsg_set(want, -EINVAL, "a string that is not empty");
	if (s->kind == SETTING_NAME && (!names_is_file(text) || strlen(text) > 200))
		return errmsg_set(want, -EINVAL, "a name without slashes, of at most 200 bytes");
	return setting_set_text(out, text, want);
}

static int set_value(struct config *c, const struct setting *s, const char *text,
		     struct errmsg *want)
{
	void *const at = (char *)c + s->at;

	switch (s->kind) {
	case SETTING_UINT:
	case SETTING_U64:
	case SETTING_REAL:
	case SETTING_FLOAT:
		return set_number(c, s, text, want);
	case SETTING_BETAS:
		return set_betas(text, at, want);
	case SETTING_CHOICE:
	case SETTING_CHOICE_ANY_CASE:
		return set_choice(c, s, text ? text : s->choices->name, want);
	case SETTING_TEXT:
	case SETTING_NAME:
	case SETTING_MODEL:
		return set_text(s, text, at, want);
	case SETTING_RESUME: /* without DIR: settle_resume sets it */
		return setting_set_text(at, text ? text : "", want);
	case SETTING_ON:
		return set_on(c, s, text ? text : "true", want);
	default: /* handled in the early pass */
		return 0;
	}
}

int setting_set(struct config *c, const struct setting *s, const char *where, const char *text,
		struct errmsg *err)
{
	struct errmsg want;
	const int rc = set_value(c, s, text, &want);

	if (rc == -EINVAL)
		return errmsg_set(err, rc, "%s must be %s", where, want.text);
	return rc ? errmsg_nomem(err, NULL) : 0;
}

int settings_init(struct config *c, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; i < SETTINGS && !rc; i++)
		if (settings[i].initial)
			rc = setting_set(c, &settings[i], "", settings[i].initial, err);
	return rc;
}
