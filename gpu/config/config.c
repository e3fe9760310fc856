/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines.  They are parsed twice: the model and the DeepSpeed configuration set many values,
 * and any flag overrides them wherever it stands on the command line.  Derived values come last.
 */
#include "gpu/config/config.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "gpu/config/config_impl.h"

#define AT(member) offsetof(struct config, member)

/* A command line being parsed. */
struct parse {
	struct config *config;
	bool verbose;
};

static void config_print_help(bool all)
{
	puts("usage: [mpirun -n RANKS] uctrain [--FLAG VALUE]...\n\n"
	     "Train GPT-2 with ZeRO, and save checkpoints as DeepSpeed does.");
	if (!all)
		puts("");
	settings_print(all);
	puts("\nDefaults are in parentheses.  --help=all lists all flags; see uctrain(1).");
}

/* Handle a flag whose values other flags override. */
static int set_early(const struct parse *p, enum setting_kind kind, const char *text,
		     struct errmsg *err)
{
	struct errmsg why;

	switch (kind) {
	case SETTING_HELP:
		if (text && strcmp(text, "all") != 0)
			return errmsg_set(err, -EINVAL, "--help=%s: must be all", text);
		if (p->verbose)
			config_print_help(text);
		return 1;
	case SETTING_VERSION:
		if (p->verbose)
			puts("uctrain " PACKAGE_VERSION);
		return 1;
	case SETTING_JSON:
		return config_read_json(p->config, text, p->verbose, err);
	case SETTING_MODEL:
		return gpt2_preset(text, &p->config->model, &why)
			       ? errmsg_set(err, -EINVAL, "--model: %s", why.text)
			       : 0;
	default:
		return 0;
	}
}

/* getopt_long's code for flag 0; smaller codes are characters. */
#define FLAG_CODE 256

/* Report the argument that getopt_long has just rejected; `code` is ':' or '?'. */
static int refuse(char **argv, const struct option *options, int code, struct errmsg *err)
{
	const char *const word = argv[optind - 1];
	struct errmsg why;

	if (code == ':')
		return errmsg_set(err, -EINVAL, "%s: needs a value", word);
	if (optopt >= FLAG_CODE)
		return errmsg_set(err, -EINVAL, "%s: takes no value", word);
	suggest_option(options, word, &why);
	return errmsg_set(err, -EINVAL, "%s: %s (--help=all lists all)", word, why.text);
}

/* Discard values of the configuration that a flag replaces. */
static void config_forget(struct config *c, const struct setting *s)
{
	if (s->at == AT(batch) || s->at == AT(micro_batch))
		c->accumulation = 0;
	if (s->at == AT(schedule.kind))
		c->schedule = (struct lr_schedule_config){
			.kind = c->schedule.kind,
			.start_lr = NAN,
			.min_lr = c->schedule.min_lr,
			.warmup = c->schedule.warmup,
		};
	if (s->at == AT(schedule.min_lr)) {
		c->schedule.start_lr = NAN;
		c->keys.schedule.kind = SCHEDULE_CONSTANT;
	}
}

static void make_options(struct option options[SETTINGS + 1])
{
	struct option *to = options;

	for (size_t i = 0; i < SETTINGS; i++)
		if (settings[i].flag)
			*to++ = (struct option){
				.name = settings[i].flag,
				.has_arg = setting_value_is_optional(&settings[i])
						   ? optional_argument
					   : setting_takes_value(&settings[i]) ? required_argument
									       : no_argument,
				.val = (int)i + FLAG_CODE,
			};
	*to = (struct option){ 0 };
}

/* Parse the arguments once: with `early` the flags that others override, else the others. */
static int read_flags(const struct parse *p, int argc, char **argv, bool early, struct errmsg *err)
{
	struct option options[SETTINGS + 1];
	struct errmsg where;
	int code, rc = 0;

	make_options(options);
	opterr = 0;
	optind = 0; /* GNU: reinitialise */
	while (!rc && (code = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		const struct setting *s;

		if (code == ':' || code == '?')
			return refuse(argv, options, code, err);
		s = code == 'h' ? NULL : &settings[code - FLAG_CODE];
		if (early) {
			rc = set_early(p, s ? s->kind : SETTING_HELP, s ? optarg : NULL, err);
			continue;
		}
		errmsg_set(&where, 0, "--%s %s:", s->flag, optarg && *optarg ? optarg : "''");
		rc = setting_set(p->config, s, where.text, optarg, err);
		config_forget(p->config, s);
	}
	if (!rc && optind < argc)
		rc = errmsg_set(err, -EINVAL, "'%s': not a flag", argv[optind]);
	return rc;
}

static int set_defaults(struct config *c, struct errmsg *err)
{
	*c = (struct config){
		.model = { .layer_norm_epsilon = 1e-5f },
		.schedule = { .start_lr = NAN },
		.scaler = { .initial = 65536, .dynamic = true },
		.keys = { .max_lr = NAN },
	};
	return settings_init(c, err) ?: gpt2_preset(c->model_name, &c->model, err);
}

int config_parse(struct config *c, int argc, char **argv, unsigned ranks, bool verbose,
		 struct errmsg *err)
{
	const struct parse p = { .config = c, .verbose = verbose };
	const int rc = set_defaults(c, err)
			       ?: read_flags(&p, argc, argv, true, err)
			       ?: read_flags(&p, argc, argv, false, err)
			       ?: config_settle(c, ranks, err);

	if (rc)
		config_done(c);
	return rc;
}

void config_done(struct config *c)
{
	for (const struct setting *s = settings; s < settings + SETTINGS; s++)
		if (setting_text(c, s))
			free(*setting_text(c, s));
	*c = (struct config){ 0 };
}
