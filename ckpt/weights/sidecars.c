/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/weights/sidecars.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/shardcache.h"

/*
 * What from_pretrained of transformers' models, tokenizers and processors asks a
 * directory for (5.23: utils/__init__.py and utils/hub.py for the names that all
 * share, VOCAB_FILES_NAMES of each tokenizer for the others).  Not among them:
 * weights, which are what the tag has, and what trainers keep for themselves.
 */
static const char *const patterns[] = {
	/* The model, and how it generates text. */
	"config.json",
	"generation_config.json",
	/* Any tokenizer: the whole of a fast one, and how it is set up. */
	"tokenizer.json",
	"tokenizer_config.json",
	"special_tokens_map.json",
	"added_tokens.json",
	"chat_template.jinja",
	"chat_template.json",
	/* Vocabularies: BPE (GPT-2), WordPiece (BERT), SentencePiece (Llama; T5;
	 * XLM-R; Marian), Mistral's, tiktoken's. */
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

/* A directory with more of them is none of a run. */
#define COMPANIONS_MAX 1000

static bool is_wanted(const char *name)
{
	for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
		if (fnmatch(patterns[i], name, FNM_PERIOD) == 0)
			return true;
	return false;
}

/* The directory that a path's last component stands in: the one that the user
 * sees, if the tag is a link. */
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

static int by_name(const void *a, const void *b)
{
	const struct companion *const x = a, *const y = b;

	return strcmp(x->name, y->name);
}

static bool has_name(const struct companions *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->v[i].name, name) == 0)
			return true;
	return false;
}

static bool add_name(struct companions *c, const char *name, bool own)
{
	void *const grown = realloc(c->v, (c->n + 1) * sizeof(*c->v));

	if (!grown)
		return false;
	c->v = grown;
	c->v[c->n] = (struct companion){ .name = strdup(name), .own = own };
	return c->v[c->n].name ? ++c->n : false;
}

/* Regular files alone; links are followed, as the trainer may have made some. */
static bool list_names(struct companions *c, const char *dir, bool own)
{
	DIR *const d = opendir(dir);
	const struct dirent *e;
	struct stat st;
	bool ok = true;

	while (d && ok && c->n < COMPANIONS_MAX && (e = readdir(d)))
		if (is_wanted(e->d_name) && !has_name(c, e->d_name) &&
		    fstatat(dirfd(d), e->d_name, &st, 0) == 0 &&
		    S_ISREG(st.st_mode))
			ok = add_name(c, e->d_name, own);
	if (d)
		closedir(d);
	return ok;
}

static bool add_files(struct companions *c, const char *tag, const char *dir)
{
	size_t kept = 0;
	bool ok = true;

	for (size_t i = 0; i < c->n; i++) {
		struct companion x = c->v[i];
		struct fileid id;
		struct stat st;
		char *path = NULL;

		ok = ok && asprintf(&path, "%s/%s", x.own ? tag : dir,
				    x.name) >= 0;
		if (!ok || stat(path, &st) < 0) {
			free(x.name);
		} else {
			fileid_from_stat(&st, &id);
			ok = shardcache_add(c->shards, path, &id) >= 0;
			x.size = id.size;
			x.mtime_s = st.st_mtim.tv_sec;
			x.mode = st.st_mode & 07777;
			c->v[kept++] = x;
		}
		free(path);
	}
	c->n = kept;
	return ok;
}

int companions_find(struct companions *c, const char *path, struct errmsg *err)
{
	char *const dir = parent_of(path);
	bool ok;

	*c = (struct companions){ .shards = shardcache_new() };
	ok = dir && c->shards && list_names(c, path, true) &&
	     list_names(c, dir, false);
	if (c->n)
		qsort(c->v, c->n, sizeof(*c->v), by_name);
	if (ok)
		ok = add_files(c, path, dir);
	free(dir);
	if (ok)
		return 0;
	companions_done(c);
	return errmsg_set(err, -ENOMEM, "%s: out of memory", path);
}

void companions_done(struct companions *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->v[i].name);
	free(c->v);
	shardcache_free(c->shards);
	*c = (struct companions){ 0 };
}
