/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/weights/sidecars.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/files/files.h"
#include "ckpt/files/roots.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"

/*
 * Names of the files that from_pretrained of transformers' models, tokenizers
 * and processors reads (transformers 5.23: utils/__init__.py and utils/hub.py
 * for the common names, VOCAB_FILES_NAMES of each tokenizer for the rest).
 * Weights are left out, because the tag itself holds them; so are files that
 * only trainers read.
 */
static const char *const patterns[] = {
	/* The model, and its defaults for text generation. */
	"config.json",
	"generation_config.json",
	/* All tokenizers: a fast tokenizer's data, and the settings. */
	"tokenizer.json",
	"tokenizer_config.json",
	"special_tokens_map.json",
	"added_tokens.json",
	"chat_template.jinja",
	"chat_template.json",
	/* Vocabularies of BPE (GPT-2), WordPiece (BERT), SentencePiece (Llama;
	 * T5; XLM-R; Marian), Mistral and tiktoken. */
	"vocab.json",
	"merges.txt",
	"vocab.txt",
	"tokenizer.model",
	"spiece.model",
	"sentencepiece.bpe.model",
	"source.spm",
	"target.spm",
	"tekken.json",
	"*.tiktoken",
	/* Images, sound and video. */
	"preprocessor_config.json",
	"processor_config.json",
	"video_preprocessor_config.json",
	/* Code that config.json names in auto_map, for trust_remote_code. */
	"configuration_*.py",
	"modeling_*.py",
	"tokenization_*.py",
	"processing_*.py",
	"image_processing_*.py",
};

/* A directory with more matches than this does not hold one model. */
#define SIDECARS_MAX 1000

static bool is_wanted(const char *name)
{
	for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
		if (fnmatch(patterns[i], name, FNM_PERIOD) == 0)
			return true;
	return false;
}

/* Return the directory part of `path`, as the user wrote it: a tag that is a
 * link is not followed.  NULL if memory is short. */
static char *parent_of(const char *path)
{
	size_t n = strlen(path);
	const char *name;
	char *out;

	while (n > 1 && path[n - 1] == '/')
		n--;
	name = path + n;
	while (name > path && name[-1] != '/')
		name--;
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || n == 1)
		return asprintf(&out, "%.*s/..", (int)n, path) < 0 ? NULL : out;
	if (name == path)
		return strdup(".");
	n = (size_t)(name - path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	return strndup(path, n);
}

static bool has_name(const struct sidecars *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->v[i].name, name) == 0)
			return true;
	return false;
}

/* Add a file of `dir`, unless it is gone meanwhile.  False if memory is short. */
static bool add_file(struct uckpt *u, struct sidecars *c, const char *dir,
		     const char *name)
{
	struct tag_file f = { .u = u };

	if (!array_reserve(&c->v, &c->cap, c->n + 1, sizeof(*c->v)) ||
	    asprintf(&f.path, "%s/%s", dir, name) < 0)
		return false;
	if (tag_file_find(&f, NULL))
		free(f.path);
	else
		c->v[c->n++] = f;
	return true;
}

/* The run's directory.  A union of tags has that of the first. */
static char *run_of(struct uckpt *u, const char *tag)
{
	char *const first = *roots_below(u, tag) ? strdup(tag) : roots_path(u, tag, 0);
	char *const dir = first ? parent_of(first) : NULL;

	free(first);
	return dir;
}

/* Add the regular files of `dir` that match a pattern and are not there yet.  Links
 * count, because a trainer may link to files elsewhere. */
static bool add_dir(struct uckpt *u, struct sidecars *c, const char *dir)
{
	struct dirlist d;
	bool ok = true;

	if (files_list(u, dir, true, &d, NULL))
		return true;
	for (size_t i = 0; ok && c->n < SIDECARS_MAX && i < d.n; i++)
		if (is_wanted(d.v[i].name) && !has_name(c, d.v[i].name) &&
		    S_ISREG(d.v[i].type))
			ok = add_file(u, c, dir, d.v[i].name);
	dirlist_done(&d);
	return ok;
}

int sidecars_find(struct uckpt *u, struct sidecars *c, const char *path, struct errmsg *err)
{
	char *const dir = run_of(u, path);
	bool ok;

	*c = (struct sidecars){ 0 };
	ok = dir && add_dir(u, c, path) && add_dir(u, c, dir);
	if (c->n)
		qsort(c->v, c->n, sizeof(*c->v), array_by_text);
	free(dir);
	if (ok)
		c->shards = zckpt_shards(u, c->v, c->n);
	if (c->shards)
		return 0;
	sidecars_done(c);
	return errmsg_nomem(err, path);
}

void sidecars_done(struct sidecars *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->v[i].path);
	free(c->v);
	shardcache_free(c->shards);
	*c = (struct sidecars){ 0 };
}
