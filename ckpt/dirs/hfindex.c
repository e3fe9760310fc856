/* SPDX-License-Identifier: Apache-2.0 */
/*
 * {"metadata": ..., "weight_map": {"TENSOR": "FILE", ...}}, as huggingface_hub
 * writes it.  `metadata` is ignored: sizes are taken from the files.
 */
#include "ckpt/dirs/hfindex.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/dirs/names.h"

/* List the names of files, sorted and without duplicates. */
static int list_files(struct hfindex *x, const cJSON *map,
		      const struct source *src, struct errmsg *err)
{
	const cJSON *entry;
	size_t n = 0;

	cJSON_ArrayForEach(entry, map)
	{
		if (!cJSON_IsString(entry) || !names_is_file(entry->valuestring))
			return errmsg_set(err, -EBADMSG,
					  "%s: weight_map: the file of %.200s is"
					  " no name in this directory",
					  src->name, entry->string);
		x->files[n++] = entry->valuestring;
	}
	qsort(x->files, n, sizeof(*x->files), array_by_text);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || strcmp(x->files[i], x->files[i - 1]) != 0)
			x->files[x->nfiles++] = x->files[i];
	return 0;
}

static uint32_t hfindex_find_file(const struct hfindex *x, const char *name)
{
	const char *const *const f =
		array_find(x->files, x->nfiles, sizeof(*x->files), name);

	assert(f); /* list_files has listed all names */
	return (uint32_t)(f - x->files);
}

/* Replace a string of the parsed text, which is freed, by a copy. */
static bool copy_text(struct hfindex *x, const char **s)
{
	*s = arena_strdup(&x->arena, *s);
	return *s;
}

static bool list_tensors(struct hfindex *x, const cJSON *map)
{
	const cJSON *entry;
	bool ok = true;

	cJSON_ArrayForEach(entry, map) x->v[x->n++] = (struct hfindex_entry){
		entry->string, hfindex_find_file(x, entry->valuestring)
	};
	qsort(x->v, x->n, sizeof(*x->v), array_by_text);
	for (size_t i = 0; ok && i < x->n; i++)
		ok = copy_text(x, &x->v[i].tensor);
	for (size_t i = 0; ok && i < x->nfiles; i++)
		ok = copy_text(x, &x->files[i]);
	return ok;
}

static int read_map(struct hfindex *x, const cJSON *map,
		    const struct source *src, struct errmsg *err)
{
	const size_t n = (size_t)cJSON_GetArraySize(map);
	int rc;

	if (!cJSON_IsObject(map) || n == 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: weight_map is missing, or empty",
				  src->name);
	x->files = arena_alloc(&x->arena, n * sizeof(*x->files));
	x->v = arena_alloc(&x->arena, n * sizeof(*x->v));
	rc = x->files && x->v ? list_files(x, map, src, err) : -ENOMEM;
	if (!rc && !list_tensors(x, map))
		rc = -ENOMEM;
	return rc == -ENOMEM ? errmsg_nomem(err, src->name) : rc;
}

int hfindex_read(struct hfindex *x, const struct source *src, struct errmsg *err)
{
	cJSON *root = NULL;
	int rc;

	*x = (struct hfindex){ 0 };
	if (src->size > HFINDEX_BYTES_MAX)
		return errmsg_set(err, -E2BIG, "%s: %llu bytes", src->name,
				  (unsigned long long)src->size);
	rc = json_read(src, 0, (size_t)src->size, &root, err);
	if (rc)
		return rc;
	rc = read_map(x, cJSON_GetObjectItemCaseSensitive(root, "weight_map"),
		      src, err);
	cJSON_Delete(root);
	if (rc)
		hfindex_done(x);
	return rc;
}

void hfindex_done(struct hfindex *x)
{
	arena_done(&x->arena);
	x->files = NULL;
	x->v = NULL;
	x->nfiles = x->n = 0;
}
