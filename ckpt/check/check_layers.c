/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the files of a pipeline's layers.  They hold the model's weights,
 * which a resumed run loads, and no tree shows them, so nothing else notices
 * that one is missing.
 *
 * Parameters are called <layer>.<name>.  The first rank of each tensor-parallel
 * slice writes layer_<layer>-model_<slice>-model_states.pt, without the slice
 * if the topology has no axis for it (runtime/pipe/module.py).
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/files/files.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

/* Parse the layer of a parameter.  False for a parameter that is tied across
 * layers. */
static bool find_layer(const char *name, unsigned long *layer)
{
	char *end;

	if (*name < '0' || *name > '9')
		return false;
	*layer = strtoul(name, &end, 10);
	return *end == '.';
}

static bool check_layers_exists(const char *dir, const char *name)
{
	struct stat st;
	char *path;
	bool found;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return true; /* the slice is not recorded */
	found = files_stat(path, &st, NULL) == 0;
	free(path);
	return found;
}

static void check_layer(struct check *c, unsigned long layer, unsigned slice,
			unsigned slices)
{
	char name[80];
	struct errmsg err;

	snprintf(name, sizeof(name), "layer_%02lu-model_states.pt", layer);
	if (slices == 1 && check_layers_exists(c->dir, name))
		return;
	snprintf(name, sizeof(name), "layer_%02lu-model_%02u-model_states.pt",
		 layer, slice);
	if (check_layers_exists(c->dir, name))
		return;
	errmsg_set(&err, 0,
		   "%s: the file of layer %lu, tensor-parallel rank %u, is"
		   " missing", c->dir, layer, slice);
	findings_add_new(&c->problems, err.text);
}

void check_layers(struct check *c)
{
	const struct zero_checkpoint *const r = plan_zckpt(c->plan);
	const struct model *const m = &r->model;
	unsigned long layer;

	if (r->dir.nlayer == 0)
		return;
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		for (size_t i = 0; i < m->ranks[mp].nslices; i++)
			if (find_layer(m->ranks[mp].slices[i].name, &layer))
				check_layer(c, layer, mp % m->tp, m->tp);
}
