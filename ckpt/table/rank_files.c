/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of the files that FSDP's ranks save: those of verl (utils/checkpoint/
 * fsdp_checkpoint_manager.py) and of programs that followed it, and Accelerate's
 * (utils/fsdp_utils.py): FULL_STATE_DICT, LOCAL_STATE_DICT, and SHARDED_STATE_DICT without DCP;
 * and torch's (distributed/checkpoint/_hf_utils.py).
 */
#include "ckpt/table/rank_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/io/io.h"

/* The first pattern that matches decides.  Capitals stand for the numbers of struct rank_file. */
static const struct pattern {
	const char *text;
	enum rank_file_kind kind;
	bool whole;
} rank_patterns[] = {
	{ "model_world_size_W_rank_R.pt", RANK_FILE_MODEL, false },
	{ "optim_world_size_W_rank_R.pt", RANK_FILE_OPTIM, false },
	{ "pytorch_model_fsdp.bin", RANK_FILE_MODEL, true },
	{ "pytorch_model_fsdp_M.bin", RANK_FILE_MODEL, true },
	{ "pytorch_model_fsdp_M_rankR.bin", RANK_FILE_MODEL, false },
	{ "pytorch_model_fsdp_rankR.bin", RANK_FILE_MODEL, false },
	{ "shard-R-model-M-of-W.safetensors", RANK_FILE_SHARD, false },
	{ "optimizer.bin", RANK_FILE_OPTIM, true },
	{ "optimizer_M.bin", RANK_FILE_OPTIM, true },
	{ "optimizer_M_rankR.bin", RANK_FILE_OPTIM, false },
};

static bool fits(const struct pattern *p, const char *s, struct rank_file *out)
{
	for (const char *c = p->text; *c; c++) {
		unsigned *number = *c == 'W'   ? &out->world
				   : *c == 'R' ? &out->rank
				   : *c == 'M' ? &out->model
					       : NULL;
		char *end;
		unsigned long n;

		if (!number) {
			if (*s++ != *c)
				return false;
			continue;
		}
		n = *s >= '0' && *s <= '9' ? strtoul(s, &end, 10) : NAMES_RANK_MAX + 1;
		if (n > NAMES_RANK_MAX)
			return false;
		*number = (unsigned)n;
		s = end;
	}
	return !*s;
}

struct rank_file rank_file_parse(const char *name)
{
	for (size_t i = 0; i < COUNT(rank_patterns); i++) {
		struct rank_file f = { .kind = rank_patterns[i].kind,
				       .whole = rank_patterns[i].whole };

		if (fits(&rank_patterns[i], name, &f))
			return f;
	}
	return (struct rank_file){ 0 };
}

/* Return the kind of a directory with files of kind `a` and another file. */
static enum rank_file_kind kind_with(enum rank_file_kind kind, enum rank_file_kind file)
{
	return file == RANK_FILE_MODEL || (file == RANK_FILE_SHARD && !kind) ? file : kind;
}

enum rank_file_kind rank_files_kind(const struct dirlist *names)
{
	enum rank_file_kind kind = RANK_FILE_NONE;

	for (size_t i = 0; kind != RANK_FILE_MODEL && i < names->n; i++)
		kind = kind_with(kind, rank_file_parse(names->v[i].name).kind);
	return kind;
}

struct found {
	const char *name;
	struct rank_file f;
};

/* Models by number, whole ones first; optimizers after all models. */
static int by_rank(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return ORDER(x->f.kind, y->f.kind) ?: ORDER(x->f.model, y->f.model) ?:
	       ORDER(y->f.whole, x->f.whole) ?: ORDER(x->f.rank, y->f.rank) ?:
	       strcmp(x->name, y->name);
}

/* Return the name of a model: the name of its file without the rank. */
static char *model_name(const struct found *x)
{
	char *name;

	if (x->f.world)
		return strdup("model");
	if (!x->f.model && (x->f.whole || strncmp(x->name, "pytorch_model_fsdp_rank", 23) == 0))
		return strdup("pytorch_model_fsdp");
	return asprintf(&name, "pytorch_model_fsdp_%u", x->f.model) < 0 ? NULL : name;
}

struct choosing {
	struct rank_files *f;
	const struct found *v; /* sorted */
	size_t n;
	const char *dir;
	struct errmsg *err;
};

/* Take the files of a model or an optimizer; `first` is the file of the first rank found. */
static int take(struct choosing *c, const struct found *first, size_t *count)
{
	char **out = c->f->v + c->f->n + c->f->noptim;
	const struct found *x = first;
	const unsigned world = first->f.world;
	size_t n = 0;

	for (; x < c->v + c->n && x->f.kind == first->f.kind && x->f.model == first->f.model &&
	       x->f.whole == first->f.whole;
	     x++, n++) {
		if (x->f.world != world)
			return errmsg_set(
				c->err, -EBADMSG,
				"%s/%s: is of another save than %s: keep the files of one number of ranks",
				c->dir, x->name, first->name);
		if (x->f.rank != n)
			break;
		if (world && n == world)
			return errmsg_set(c->err, -EBADMSG,
					  "%s/%s: is of another save: there were %u ranks, numbered from 0 on",
					  c->dir, x->name, world);
		out[n] = strdup(x->name);
		if (!out[n])
			return errmsg_nomem(c->err, c->dir);
		++*count;
		if (first->f.whole)
			return 0;
	}
	if (n < world || (x < c->v + c->n && x->f.kind == first->f.kind &&
			  x->f.model == first->f.model && x->f.whole == first->f.whole))
		return errmsg_set(
			c->err, -EBADMSG,
			"%s: the file of rank %zu is missing beside %s, which is of rank %u",
			c->dir, n, first->name, first->f.rank);
	return 0;
}

/* Return the first file of the requested model; record the other models. */
static const struct found *choose(struct choosing *c, const char *wanted, bool *ok)
{
	const struct found *chosen = NULL, *last = NULL;
	struct bytebuf others = { 0 };

	*ok = true;
	for (const struct found *x = c->v; *ok && x < c->v + c->n; x++) {
		char *name;

		if (x->f.kind != RANK_FILE_MODEL ||
		    (last && last->f.model == x->f.model && !last->f.world == !x->f.world))
			continue;
		last = x;
		name = model_name(x);
		*ok = name;
		if (name && (!chosen || (wanted && strcmp(name, wanted) == 0))) {
			if (c->f->model)
				bytebuf_add_format(&others, "%s%s", others.len ? ", " : "",
						   c->f->model);
			free(c->f->model);
			c->f->model = name;
			chosen = x;
		} else if (name) {
			bytebuf_add_format(&others, "%s%s", others.len ? ", " : "", name);
			free(name);
		}
	}
	*ok &= !others.failed;
	if (others.len)
		c->f->others = strndup((const char *)others.data, others.len);
	bytebuf_done(&others);
	return chosen;
}

static int choose_files(struct choosing *c, const char *wanted)
{
	bool ok;
	const struct found *model = choose(c, wanted, &ok), *x;
	int rc = model && ok ? take(c, model, &c->f->n) : errmsg_nomem(c->err, c->dir);

	if (rc)
		return rc;
	for (x = c->v; x < c->v + c->n; x++)
		if (x->f.kind == RANK_FILE_OPTIM && x->f.model == model->f.model &&
		    !x->f.world == !model->f.world)
			break;
	if (x == c->v + c->n)
		return 0;
	if (x->f.whole != model->f.whole || x->f.world != model->f.world)
		return errmsg_set(
			c->err, -EBADMSG,
			"%s/%s: is of another save than %s: keep the files of one number of ranks",
			c->dir, x->name, model->name);
	rc = take(c, x, &c->f->noptim);
	if (!rc && c->f->noptim != c->f->n)
		rc = errmsg_set(c->err, -EBADMSG,
				"%s: %zu ranks have a model, and %zu an optimizer: files are missing",
				c->dir, c->f->n, c->f->noptim);
	return rc;
}

/* Take the shards of all ranks, which have equally many files.  The number of ranks is not
 * recorded: the first missing file ends the list. */
static int take_shards(struct choosing *c)
{
	const struct found *v = c->v;
	unsigned ranks = 0, files = 0;
	size_t n = 0;

	for (; v < c->v + c->n && v->f.kind != RANK_FILE_SHARD; v++)
		;
	for (const struct found *x = v; x < c->v + c->n; x++, n++) {
		ranks = x->f.rank > ranks ? x->f.rank : ranks;
		files = x->f.world > files ? x->f.world : files;
	}
	for (size_t i = 0; i < (size_t)ranks * files; i++) {
		const unsigned model = (unsigned)(i / ranks) + 1, rank = (unsigned)(i % ranks) + 1;

		if (i >= n || v[i].f.model != model || v[i].f.rank != rank || v[i].f.world != files)
			return errmsg_set(c->err, -EBADMSG,
					  "%s/shard-%05u-model-%05u-of-%05u.safetensors: is missing",
					  c->dir, rank, model, files);
		c->f->v[i] = strdup(v[i].name);
		if (!c->f->v[i])
			return errmsg_nomem(c->err, c->dir);
		c->f->n++;
	}
	if (!n || c->f->n < n)
		return errmsg_set(c->err, -EBADMSG, "%s: files of parts are numbered in no order",
				  c->dir);
	c->f->model = strdup("model");
	return c->f->model ? 0 : errmsg_nomem(c->err, c->dir);
}

int rank_files_find(struct rank_files *f, const struct dirlist *names, const char *model,
		    const char *dir, struct errmsg *err)
{
	struct found *v = calloc(names->n + 1, sizeof(*v));
	struct choosing c = { f, v, 0, dir, err };
	int rc = 0;

	*f = (struct rank_files){ .v = calloc(names->n + 1, sizeof(*f->v)) };
	for (size_t i = 0; v && i < names->n; i++) {
		v[c.n] = (struct found){ names->v[i].name, rank_file_parse(names->v[i].name) };
		f->kind = kind_with(f->kind, v[c.n].f.kind);
		c.n += v[c.n].f.kind != RANK_FILE_NONE;
	}
	if (v)
		qsort(v, c.n, sizeof(*v), by_rank);
	if (!v || !f->v)
		rc = errmsg_nomem(err, dir);
	else if (f->kind)
		rc = f->kind == RANK_FILE_SHARD ? take_shards(&c) : choose_files(&c, model);
	free(v);
	return rc;
}

void rank_files_done(struct rank_files *f)
{
	for (size_t i = 0; f->v && i < f->n + f->noptim; i++)
		free(f->v[i]);
	free(f->v);
	free(f->model);
	free(f->others);
	*f = (struct rank_files){ 0 };
}
