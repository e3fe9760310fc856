/* SPDX-License-Identifier: Apache-2.0 */
/* The options of the library, with the members they set. */
#include "ckpt/commands/settings.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/api.h"
#include "ckpt/table/hfhub.h"
#include "ckpt/remote/cache.h"

/* By default, read-ahead from remote storage may use this part of the memory. */
#define READAHEAD_PART 64

/* Limit of workers, and of ranks. */
#define COUNT_MAX 4096

#define DEADLINE_MAX_S 86400u

struct option;

/* Set an option, such as "crc=zero".  Returns NULL, or an error text about the value. */
typedef const char *setter(struct uckpt *u, const struct option *o, const char *text,
			   const char *value);

struct option {
	const char *name; /* name; a trailing '=' means that a value is required */
	setter *set;
	size_t at;                /* offset of the member in struct settings, or in the context */
	const char *wrong;        /* message for a wrong value, unless the setter returns one */
	const char *const *words; /* values by number; NULL: none */
	size_t nwords;
	bool two; /* there are two words, and the member is a bool, not an enum */
	bool of_servers;
};

static const char *const crcs[] = { "exact", "zero" };
static const char *const stages[] = { "native", "any" };
static const char
	*const dtypes[] = { [DTYPE_F32] = "fp32", [DTYPE_F16] = "fp16", [DTYPE_BF16] = "bf16" };
static const char *const styles[] = {
	[DCP_FSDP2] = "fsdp2",
	[DCP_FLAT] = "flat",
	[DCP_TITAN] = "titan",
	[DCP_TITAN_FUSED] = "titan_fused",
	[DCP_ACCELERATE] = "accelerate",
	[DCP_LIGHTNING] = "lightning",
	[DCP_FABRIC] = "fabric",
};

static const char *set_flag(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	(void)text;
	(void)value;
	*(bool *)((char *)u->settings + o->at) = true;
	return NULL;
}

/* Set an option that takes one of a few words. */
static const char *set_word(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	char *to = (char *)u->settings + o->at;
	size_t i = 0;

	(void)text;
	while (i < o->nwords && (!o->words[i] || strcmp(o->words[i], value) != 0))
		i++;
	if (i == o->nwords)
		return o->wrong;
	if (o->two)
		*(bool *)to = i;
	else
		*(unsigned *)to = (unsigned)i;
	return NULL;
}

static const char *set_rules(struct uckpt *u, const struct option *o, const char *text,
			     const char *value)
{
	static _Thread_local struct errmsg why;
	struct settings *s = u->settings;

	(void)o;
	s->tree.view.rules = &s->rules;
	return (*text == 'p' ? user_rules_preset : user_rules_read)(&s->rules, value, &why)
		       ? why.text
		       : NULL;
}

static const char *set_size(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	(void)text;
	return size_parse_decimal(value, &u->settings->tree.view.shard_size) ? NULL : o->wrong;
}

static const char *set_view(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	static _Thread_local char why[VIEW_LIST_MAX + sizeof("must be ")] = "must be ";

	(void)o;
	(void)text;
	view_type_list(0, "", why + strlen("must be "));
	return view_type_parse_kind(value, &u->settings->tree.view.type.kind) ? NULL : why;
}

/* Set a ZeRO stage, or a word for a kind of universal tree. */
static const char *set_stage(struct uckpt *u, const struct option *o, const char *text,
			     const char *value)
{
	if (*value < '1' || *value > '3' || value[1])
		return set_word(u, o, text, value);
	u->settings->tree.view.type.stage = (unsigned)(*value - '0');
	return NULL;
}

/* Parse a whole number below `end`. */
static bool parse_number(const char *text, unsigned long end, unsigned *out)
{
	char *rest;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &rest, 10);
	if (errno || *rest || *text < '0' || *text > '9' || v >= end)
		return false;
	*out = (unsigned)v;
	return true;
}

static const char *set_owner(struct uckpt *u, const struct option *o, const char *text,
			     const char *value)
{
	struct tree_options *t = &u->settings->tree;
	const bool group = *text == 'g';

	if (!parse_number(value, UINT32_MAX, group ? &t->gid : &t->uid))
		return o->wrong;
	*(group ? &t->has_gid : &t->has_uid) = true;
	return NULL;
}

static const char *set_count(struct uckpt *u, const struct option *o, const char *text,
			     const char *value)
{
	unsigned *to = (unsigned *)((char *)u->settings + o->at);

	(void)text;
	return parse_number(value, COUNT_MAX + 1, to) && *to ? NULL : o->wrong;
}

static const char *set_head_dim(struct uckpt *u, const struct option *o, const char *text,
				const char *value)
{
	(void)text;
	return parse_number(value, COUNT_MAX + 1, &u->head_dim) && u->head_dim ? NULL : o->wrong;
}

static const char *set_part(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	(void)o;
	(void)text;
	return share_parse(value, &u->settings->share);
}

static const char *set_tolerance(struct uckpt *u, const struct option *o, const char *text,
				 const char *value)
{
	double *to = (double *)((char *)u->settings + o->at);
	char *rest;

	(void)text;
	*to = strtod(value, &rest);
	return *value && !*rest && *to >= 0 && isfinite(*to) ? NULL : o->wrong;
}

/* Set a size: 0, or large enough to be useful. */
static const char *set_readahead(struct uckpt *u, const struct option *o, const char *text,
				 const char *value)
{
	uint64_t *bytes = &u->settings->readahead;

	(void)text;
	*bytes = 0;
	return strcmp(value, "0") == 0 || (size_parse_binary(value, bytes) && *bytes >= CACHE_MIN)
		       ? NULL
		       : o->wrong;
}

static const char *set_hf_config(struct uckpt *u, const struct option *o, const char *text,
				 const char *value)
{
	static _Thread_local struct errmsg why;
	struct settings *s = u->settings;
	char *dir;

	(void)o;
	(void)text;
	if (hfhub_find(value, &dir, &why))
		return why.text;
	free(s->hf_config);
	s->tree.view.hf_config = s->hf_config = dir;
	return NULL;
}

/* Set a text in the context. */
static const char *set_text(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	char **to = (char **)((char *)u + o->at);
	char *copy = *value ? strdup(value) : NULL;

	(void)text;
	if (!copy)
		return *value ? "out of memory" : o->wrong;
	free(*to);
	*to = copy;
	return NULL;
}

/* Store the absolute path, since a server changes its working directory. */
static const char *set_path(struct uckpt *u, const struct option *o, const char *text,
			    const char *value)
{
	char cwd[PATH_MAX], path[2 * PATH_MAX];

	if (*value == '/' || !*value)
		return set_text(u, o, text, value);
	if (!getcwd(cwd, sizeof(cwd)) || strlen(value) >= PATH_MAX)
		return "not a file name";
	snprintf(path, sizeof(path), "%s/%s", cwd, value);
	return set_text(u, o, text, path);
}

static const char *set_url(struct uckpt *u, const struct option *o, const char *text,
			   const char *value)
{
	return strncmp(value, "http://", 7) == 0 || strncmp(value, "https://", 8) == 0
		       ? set_text(u, o, text, value)
		       : o->wrong;
}

static const char *set_deadline(struct uckpt *u, const struct option *o, const char *text,
				const char *value)
{
	unsigned s;

	(void)text;
	if (!parse_number(value, DEADLINE_MAX_S + 1, &s) || !s)
		return o->wrong;
	u->remote.deadline_s = s;
	return NULL;
}

static const char *set_anonymous(struct uckpt *u, const struct option *o, const char *text,
				 const char *value)
{
	(void)o;
	(void)text;
	(void)value;
	u->remote.s3_anonymous = true;
	return NULL;
}

/* Set one number of ranks, or several separated by commas. */
static const char *set_ranks(struct uckpt *u, const struct option *o, const char *text,
			     const char *value)
{
	struct tree_options *t = &u->settings->tree;
	char one[32];

	(void)text;
	for (size_t n; n = strcspn(value, ","), true; value += n + 1) {
		if (t->nrecut == TREE_RECUT_MAX)
			return "too many numbers of ranks";
		if (n >= sizeof(one))
			return o->wrong;
		memcpy(one, value, n);
		one[n] = '\0';
		if (!view_type_parse_ranks(one, &t->recut[t->nrecut]))
			return o->wrong;
		t->nrecut++;
		if (!value[n])
			return NULL;
	}
}

#define AT(field) .at = offsetof(struct settings, field)
#define IN_CONTEXT(field) .at = offsetof(struct uckpt, field)
#define WORDS(list) .words = list, .nwords = COUNT(list), .two = COUNT(list) == 2
#define RANKS "not a number of ranks (1 to 4096)"
#define TOLERANCES "not a number of at least 0"
#define WORKERS "not a number of workers (1 to 4096)"

static const struct option options[] = {
	{ "crc=", set_word, WORDS(crcs), AT(tree.view.crc_zero), .wrong = "must be exact or zero" },
	{ "stage=", set_stage, WORDS(stages), AT(tree.view.any_stage),
	  .wrong = "must be native or any, or with view=zero a ZeRO stage: 1, 2 or 3" },
	{ "rules=", .set = set_rules },
	{ "preset=", .set = set_rules },
	{ "hf_dtype=", set_word, WORDS(dtypes), AT(tree.view.dtype),
	  .wrong = "must be fp32, bf16 or fp16" },
	{ "hf_config=", .set = set_hf_config },
	{ "hf_shard_size=", set_size, .wrong = "not a size in KB, MB, GB or TB" },
	{ "dcp_style=", set_word, WORDS(styles), AT(tree.view.dcp_style),
	  .wrong = "must be fsdp2, flat, titan, titan_fused, accelerate, lightning or fabric" },
	{ "dcp_ranks=", set_count, AT(tree.view.dcp_ranks), .wrong = RANKS },
	{ "model=", set_text, IN_CONTEXT(model), .wrong = "names no dict" },
	{ "head_dim=", set_head_dim, .wrong = "not a number of rows (1 to 4096)" },
	{ "view=", .set = set_view },
	{ "ranks=", set_ranks, .wrong = RANKS },
	{ "replace", set_flag, AT(tree.replace) },
	{ "check", set_flag, AT(tree.check) },
	{ "uid=", set_owner, .wrong = "not a number" },
	{ "gid=", set_owner, .wrong = "not a number" },
	{ "allow_other", set_flag, AT(tree.shared) },
	{ "follow_links", set_flag, AT(tree.follow_links) },
	{ "readahead=", set_readahead, .wrong = "neither 0 nor a size of at least 4M" },
	{ "no_strict", set_flag, AT(lenient) },
	{ "readers=", set_count, AT(read_threads), .wrong = WORKERS },
	{ "jobs=", set_count, AT(write_threads), .wrong = WORKERS },
	{ "part=", .set = set_part },
	{ "rtol=", set_tolerance, AT(rtol), .wrong = TOLERANCES },
	{ "atol=", set_tolerance, AT(atol), .wrong = TOLERANCES },
	{ "deadline=", set_deadline, .of_servers = true,
	  .wrong = "not a number of seconds (1 to 86400)" },
	{ "manifest=", set_path, IN_CONTEXT(remote.manifest), .of_servers = true,
	  .wrong = "needs a value" },
	{ "ca_file=", set_path, IN_CONTEXT(remote.ca_file), .of_servers = true,
	  .wrong = "needs a value" },
	{ "s3_endpoint=", set_url, IN_CONTEXT(remote.s3_endpoint), .of_servers = true,
	  .wrong = "not a URL" },
	{ "s3_region=", set_text, IN_CONTEXT(remote.s3_region), .of_servers = true,
	  .wrong = "needs a value" },
	{ "s3_anonymous", set_anonymous, .of_servers = true },
};

struct settings *settings_of(struct uckpt *u)
{
	const uint64_t share = memory_size() / READAHEAD_PART;

	if (!u->settings && (u->settings = calloc(1, sizeof(*u->settings)))) {
		u->settings->tree.u = u;
		u->settings->readahead = share < CACHE_DEFAULT ? share : CACHE_DEFAULT;
	}
	return u->settings;
}

void settings_free(struct uckpt *u)
{
	if (!u->settings)
		return;
	free(u->settings->tree.source);
	free(u->settings->hf_config);
	user_rules_done(&u->settings->rules);
	free(u->settings);
}

int settings_validate(struct settings *s, struct errmsg *err)
{
	struct tree_options *t = &s->tree;
	const bool zero = t->view.type.kind == VIEW_RECUT;
	const unsigned stage = t->view.type.stage;

	if (zero && t->nrecut != 1)
		return errmsg_set(err, -EINVAL, "view=zero: needs ranks=N, with one N");
	if (t->replace && t->nrecut != 1)
		return errmsg_set(err, -EINVAL, "replace: needs ranks=N, with one N");
	if (!zero && stage)
		return errmsg_set(err, -EINVAL, "stage=%u: must be native or any", stage);
	if (zero)
		t->view.type = t->recut[0];
	if (stage)
		t->view.type.stage = stage;
	return 0;
}

const char *uckpt_option_name(size_t i)
{
	return i < COUNT(options) ? options[i].name : NULL;
}

/* Report an unknown option, or one with a wrong or missing value. */
static int refuse(const char *text, bool of_servers, struct errmsg *err)
{
	struct suggestion near = suggest_begin(text);
	struct errmsg why;

	for (size_t i = 0; i < COUNT(options); i++)
		if (!of_servers || options[i].of_servers)
			suggest_consider(&near, options[i].name, strlen(options[i].name));
	suggest_end(&near, "", &why);
	return errmsg_set(err, near.name && !near.distance ? -EINVAL : -ENOENT, "%s: %s", text,
			  why.text);
}

static int set_option(struct uckpt *u, const char *text, bool of_servers, struct errmsg *err)
{
	const char *wrong;

	for (size_t i = 0; i < COUNT(options); i++) {
		const struct option *o = &options[i];
		const size_t n = strlen(o->name);

		if ((of_servers && !o->of_servers) ||
		    (o->name[n - 1] == '=' ? strncmp(text, o->name, n) : strcmp(text, o->name)))
			continue;
		wrong = o->set(u, o, text, text + n);
		return wrong ? errmsg_set(err, -EINVAL, "%s: %s", text, wrong) : 0;
	}
	return refuse(text, of_servers, err);
}

int uckpt_set(struct uckpt *u, const char *text, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);

	if (!u || !text)
		return api_refuse(err);
	if (u->tree)
		return errmsg_set(err, -EBUSY, "%s: a source is open", text);
	return settings_of(u) ? set_option(u, text, false, err) : errmsg_nomem(err, NULL);
}

int settings_set_servers(struct uckpt *u, const char *list, struct errmsg *err)
{
	char *copy = strdup(list), *rest = copy, *option;
	int rc = copy ? 0 : errmsg_nomem(err, NULL);

	while (!rc && (option = strsep(&rest, ",")))
		rc = set_option(u, option, true, err);
	free(copy);
	return rc;
}

int uckpt_share(struct uckpt *u, const uint64_t *sizes, size_t n, bool *mine,
		struct uckpt_error *error)
{
	const struct settings *s = settings_of(u);

	return s && share_choose(&s->share, sizes, n, mine) ? 0
							     : errmsg_nomem(errmsg_of(error), NULL);
}
