/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/views/config_files.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/views/adapter.h"

#define CONFIG_BYTES_MAX (16u << 20)

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

/* The parameters of a search. */
struct search {
	const struct checkpoint *tag;
	struct config_files *c;
	const char *config; /* name of the required file */
	bool only;          /* search for no other file */
	bool above;         /* this directory is above the run */
};

static bool is_wanted(const struct search *s, const char *name)
{
	if (strcmp(name, s->config) == 0)
		return true;
	for (size_t i = 0; !s->only && i < COUNT(patterns); i++)
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

static bool has_name(const struct config_files *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->v[i].name, name) == 0)
			return true;
	return false;
}

/* Other users may have write access to the directory above the run; they must not be able to choose
 * files that are served with the weights, such as code.  So only files of root, of the tag's owner
 * and of this process's user are trusted. */
static bool is_trusted(const struct search *s, const struct ckpt_file *f)
{
	struct fileid id;
	struct attrs a;

	if (!s->above)
		return true;
	if (io_stat(s->tag->u, f->path, 0, &a, NULL, NULL))
		return false;
	fileid_from_stat(&a.st, &id);
	return fileid_equal(&id, &f->file) &&
	       (a.st.st_uid == 0 || a.st.st_uid == s->tag->st.st_uid || a.st.st_uid == geteuid());
}

/* Add a file of `dir`, unless it has been removed.  False if memory is short. */
static bool add_file(const struct search *s, const char *dir, const char *name)
{
	struct config_files *c = s->c;
	struct ckpt_file f = { .u = s->tag->u };

	if (!array_reserve(&c->v, &c->cap, c->n + 1, sizeof(*c->v)) ||
	    asprintf(&f.path, "%s/%s", dir, name) < 0)
		return false;
	if (ckpt_file_find(&f, NULL) || !is_trusted(s, &f))
		free(f.path);
	else
		c->v[c->n++] = f;
	return true;
}

/* Return the directory above a tag's, which is its run; for a union, the one above its first
 * root's. */
static char *dir_above(struct uckpt *u, const char *path)
{
	char *first = *roots_below(u, path) ? strdup(path) : roots_path(u, path, 0);
	char *dir = first ? parent_of(first) : NULL;

	free(first);
	return dir;
}

/* Add the regular files of a directory that match a pattern and have not been added.  Links
 * count, because a trainer may link to files elsewhere. */
static bool add_files(const struct search *s, const char *dir, const struct dirlist *d)
{
	bool ok = true;

	for (size_t i = 0; ok && s->c->n < SIDECARS_MAX && i < d->n; i++)
		if (is_wanted(s, d->v[i].name) && S_ISREG(d->v[i].type) &&
		    !has_name(s->c, d->v[i].name))
			ok = add_file(s, dir, d->v[i].name);
	return ok;
}

static bool add_dir(const struct search *s, const char *dir)
{
	struct dirlist d = { 0 };
	bool ok;

	if (io_list(s->tag->u, dir, 0, &d, NULL))
		return true;
	ok = add_files(s, dir, &d);
	dirlist_done(&d);
	return ok;
}

/* Add the files of the directory `name` in `dir`. */
static bool add_below(const struct search *s, const char *dir, const char *name)
{
	char *path;
	bool ok;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return false;
	ok = add_dir(s, path);
	free(path);
	return ok;
}

static bool has_size(const struct checkpoint *m, uint64_t size)
{
	for (size_t i = 0; i < m->nparams; i++)
		for (unsigned k = 0; k < m->params[i].ndim; k++)
			if (m->params[i].shape[k] == size)
				return true;
	return false;
}

/* Does `dir` have the configuration of this model?  The width of the model, or of its text part,
 * or the rank of the adapter must be a dimension of some parameter. */
static bool is_config_of(const struct search *s, const char *dir)
{
	static const char *const sizes[] = { "hidden_size", "n_embd", "d_model", "r" };
	struct source src;
	const cJSON *text;
	cJSON *root = NULL;
	uint64_t size = 0;
	char *path;

	if (asprintf(&path, "%s/%s", dir, s->config) < 0)
		return false;
	if (!io_open(s->tag->u, path, NULL, &src, NULL)) {
		if (src.size <= CONFIG_BYTES_MAX)
			json_read(&src, 0, (size_t)src.size, &root, NULL);
		source_close(&src);
	}
	free(path);
	text = cJSON_GetObjectItemCaseSensitive(root, "text_config") ?: root;
	for (size_t i = 0; !size && i < COUNT(sizes); i++)
		json_get_count(cJSON_GetObjectItemCaseSensitive(text, sizes[i]), &size);
	cJSON_Delete(root);
	return size && has_size(s->tag, size);
}

/* Add the files of a directory above the run if they belong to this model: some directories, such
 * as /tmp, are writable for all users. */
static bool add_above(const struct search *s, const char *dir)
{
	struct search above = *s;
	struct dirlist d = { 0 };
	bool ok;

	if (!is_config_of(s, dir) || io_list(s->tag->u, dir, 0, &d, NULL))
		return true;
	above.above = true;
	ok = d.attrs.st.st_mode & S_IWOTH || add_files(&above, dir, &d);
	dirlist_done(&d);
	return ok;
}

/* Find the configuration among the files, or make the text that names the searched places. */
static bool find_config(const struct search *s, const char *run, const char *more)
{
	struct config_files *c = s->c;

	if (c->n)
		qsort(c->v, c->n, sizeof(*c->v), array_by_text);
	c->config = array_find(c->v, c->n, sizeof(*c->v), s->config);
	return c->config || asprintf(&c->missing,
				     "no %s of this model for from_pretrained: not in the tag,"
				" %s%s%s or above; option hf_config names its directory or model",
				     s->config, run, more ? ", " : "", more ?: "") >= 0;
}

/* End the search.  `ok`: memory was not short. */
static int end_search(const struct search *s, bool ok, struct errmsg *err)
{
	if (ok)
		s->c->shards = checkpoint_shards(s->tag->u, s->c->v, s->c->n);
	if (s->c->shards)
		return 0;
	config_files_done(s->c);
	return errmsg_nomem(err, s->tag->path);
}

int config_files_find(struct config_files *c, const struct checkpoint *tag, const char *adapter,
		  const char *more, struct errmsg *err)
{
	const struct search s = { .tag = tag,
				  .c = c,
				  .config = adapter ? ADAPTER_CONFIG : "config.json" };
	char *run = dir_above(tag->u, tag->path);
	char *above = run ? dir_above(tag->u, run) : NULL;
	bool ok;

	*c = (struct config_files){ 0 };
	/* The second name is verl's. */
	ok = above && add_dir(&s, tag->path) && add_below(&s, tag->path, "huggingface") && (!adapter || add_below(&s, run, adapter)) &&
	     add_dir(&s, run) && (!more || add_dir(&s, more)) &&
	     (has_name(c, s.config) || add_above(&s, above)) && find_config(&s, run, more);
	free(run);
	free(above);
	return end_search(&s, ok, err);
}

int config_files_find_adapter(struct config_files *c, const struct checkpoint *tag,
			      const char *adapter, const char *more, struct errmsg *err)
{
	const struct search s = { .tag = tag, .c = c, .config = ADAPTER_CONFIG, .only = true };
	char *run = dir_above(tag->u, tag->path);
	bool ok;

	*c = (struct config_files){ 0 };
	ok = run && add_below(&s, tag->path, adapter) && add_below(&s, run, adapter) &&
	     (!more || add_below(&s, more, adapter));
	if (ok && !c->n)
		ok = asprintf(&c->missing,
			      "no %s of the adapter '%s' for from_pretrained: not in"
			      " %s/%s%s%s; option hf_config names another directory that has %s",
			      s.config, adapter, run, adapter, more ? " or " : "", more ?: "",
			      adapter) >= 0;
	c->config = c->n ? c->v : NULL;
	free(run);
	return end_search(&s, ok, err);
}

void config_files_done(struct config_files *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->v[i].path);
	free(c->v);
	free(c->missing);
	shards_free(c->shards);
	*c = (struct config_files){ 0 };
}
