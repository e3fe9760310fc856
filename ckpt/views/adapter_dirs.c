/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PEFT saves the adapter called "default" in a directory, and every other adapter in a subdirectory
 * of its name (peft 0.21, PeftModel.save_pretrained).  The view's top directory always
 * has an adapter, so that from_pretrained loads it.
 */
#include "ckpt/views/adapter_dirs.h"

#include "ckpt/base/errmsg.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/checkpoint.h"

static void find_adapters(struct adapter_dirs *d, const struct checkpoint *c)
{
	for (size_t i = 0; i < c->norder; i++)
		if (c->order[i]->states)
			adapters_add(&d->all, &d->arena, c->order[i]->name, true);
	for (size_t i = 0; d->all.n && i < c->norder; i++)
		if (!c->order[i]->states)
			adapters_add(&d->all, &d->arena, c->order[i]->name, false);
	d->top = adapters_top(&d->all);
	if (d->top && d->top->computed)
		d->top = NULL;
}

/* Name the weights in one file; mark them in `saved`. */
static void name_weights(struct adapter_dirs *d, const struct checkpoint *c,
			 const struct adapter *one, const char **names, bool *saved)
{
	for (size_t i = 0; i < c->norder; i++) {
		const struct param *p = c->order[i];

		names[i] = adapter_key(&d->all, one, &d->arena, p->name, p->states);
		saved[p->same ? p->same->number : i] |= names[i] != NULL;
	}
}

/* Add a directory for an adapter that has weights; `names` has room for all. */
static void add_dir(struct adapter_dirs *d, const struct checkpoint *c, const struct adapter *one,
		    const char **names, bool *saved)
{
	struct adapter_dir *dir = &d->v[d->n];
	size_t n = 0;

	name_weights(d, c, one, names, saved);
	for (size_t i = 0; i < c->norder; i++)
		n += names[i] != NULL;
	dir->one = one;
	dir->names = arena_alloc(&d->arena, (n + 1) * sizeof(*dir->names));
	dir->weights = arena_alloc(&d->arena, (n + 1) * sizeof(*dir->weights));
	for (size_t i = 0; dir->names && dir->weights && i < c->norder; i++)
		if (names[i]) {
			dir->names[dir->n] = names[i];
			dir->weights[dir->n++] = i;
		}
	d->n += dir->n > 0;
}

int adapter_dirs_find(struct adapter_dirs *d, const struct checkpoint *c, struct errmsg *err)
{
	bool *saved;

	*d = (struct adapter_dirs){ 0 };
	find_adapters(d, c);
	if (!d->top)
		return d->all.failed ? errmsg_nomem(err, NULL) : 0;
	saved = arena_alloc(&d->arena, c->norder + 1);
	d->names = arena_alloc(&d->arena, (c->norder + 1) * sizeof(*d->names));
	d->v = arena_alloc(&d->arena, (d->all.n + 1) * sizeof(*d->v));
	if (!saved || !d->names || !d->v)
		return errmsg_nomem(err, NULL);
	/* The names at the top are set last, and remain. */
	for (size_t i = 0; i < d->all.n; i++)
		if (adapter_has_dir(&d->all.v[i]))
			add_dir(d, c, &d->all.v[i], d->names, saved);
	name_weights(d, c, d->top, d->names, saved);
	for (size_t i = 0; i < c->norder; i++)
		if (c->order[i]->states && !saved[i])
			d->left_out = c->order[i]->name;
	return d->arena.failed ? errmsg_nomem(err, NULL) : 0;
}

int adapter_dirs_configure(struct adapter_dirs *d, const struct checkpoint *tag, const char *more,
			   const struct config_files *top, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < d->n; i++) {
		struct adapter_dir *dir = &d->v[i];

		rc = config_files_find_adapter(&dir->own, tag, dir->one->name, more, err);
		dir->config_files = dir->one == d->top && top->config ? top : &dir->own;
	}
	return rc;
}

void adapter_dirs_warn(const struct adapter_dirs *d, const struct errmsg_sink *to)
{
	for (size_t i = 0; i < d->all.n; i++)
		if (d->all.v[i].computed)
			errmsg_put(to,
				   "%s: PEFT saves what it computes from this weight,"
				   " which is in no file of the adapter '%s'",
				   d->all.v[i].computed, d->all.v[i].name);
	if (d->left_out)
		errmsg_put(to,
			   "%s: left out of " ADAPTER_WEIGHTS ": not of the PeftModel,"
			   " or of an adapter that can have no directory",
			   d->left_out);
	for (size_t i = 0; i < d->n; i++)
		if (!d->v[i].config_files->config)
			errmsg_put(to, "%s", d->v[i].config_files->missing);
}

void adapter_dirs_done(struct adapter_dirs *d)
{
	for (size_t i = 0; i < d->n; i++)
		config_files_done(&d->v[i].own);
	arena_done(&d->arena);
}
