/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a pipeline's layers: the model's weights, which a run resumes
 * with.  No tree shows them, so nothing else misses one.
 *
 * Parameters are called <layer>.<name>; the first rank of each tensor-parallel
 * slice writes layer_<layer>-model_<slice>-model_states.pt, without the slice
 * if the topology has no axis for it (runtime/pipe/module.py).
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/check/check.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

/* The layer that a parameter belongs to: false if it is tied to several. */
static bool find_layer(const char *name, unsigned long *layer)
{
	char *end;

	if (*name < '0' || *name > '9')
		return false;
	*layer = strtoul(name, &end, 10);
	return *end == '.';
}

static bool exists(const char *dir, const char *name)
{
	char *path;
	bool found;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return true; /* nothing is known */
	found = access(path, F_OK) == 0;
	free(path);
	return found;
}

static void check_layer(struct check *c, unsigned long layer, unsigned slice,
			unsigned slices)
{
	char name[80];
	struct errmsg err;

	snprintf(name, sizeof(name), "layer_%02lu-model_states.pt", layer);
	if (slices == 1 && exists(c->dir, name))
		return;
	snprintf(name, sizeof(name), "layer_%02lu-model_%02u-model_states.pt",
		 layer, slice);
	if (exists(c->dir, name))
		return;
	errmsg_set(&err, 0,
		   "%s: the file of layer %lu, tensor-parallel rank %u, is"
		   " missing", c->dir, layer, slice);
	lines_add_new(&c->problems, err.text);
}

void check_layers(struct check *c)
{
	const struct resolve *const r = plan_resolve(c->plan);
	const struct model *const m = &r->model;
	unsigned long layer;

	if (r->dir.nlayer == 0)
		return;
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		for (size_t i = 0; i < m->cats[mp].nslices; i++)
			if (find_layer(m->cats[mp].slices[i].name, &layer))
				check_layer(c, layer, mp % m->tp, m->tp);
}
