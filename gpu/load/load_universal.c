/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors are files of a universal checkpoint: zero/<parameter>/<state>.pt is a dict with the tensor under
 * `param` (ZeRO-1 and 2), or the flat tensor itself (ZeRO-3).  If the file is in a ucfs mount,
 * its bytes are read from the shards that the mount reports (ckpt/vfile/ucfs_ioctl.h); the end of
 * the file is not read, since the mount would have to read the whole tensor for its CRC.
 *
 * Trees made from Hugging Face weights, which source.txt identifies, use Hugging Face's parameter
 * names, and have states for tensors that are no parameters.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "gpu/load/load_impl.h"

/* The prefix that a GPT-2 without a head lacks. */
#define PREFIX "transformer."

static int set_path(const struct load *l, const char *param, const char *state,
		    char path[PATH_MAX], struct errmsg *err)
{
	char name[2 * NAME_MAX];

	snprintf(name, sizeof(name), "zero/%s/%s.pt", param, state);
	return load_path(path, l->got->path, name, err);
}

/* The number of parts that a file's slices were sorted into: a number, or a SubparamShape, in which
 * the dimension that was cut is a tuple of sizes. 0: none. */
static size_t count_parts(const struct value *root)
{
	const struct value *spec = value_find(root, "sub_param_shape");
	const struct value *state = spec && spec->kind == VALUE_NEWOBJ ? spec->obj->state : NULL;
	const struct value_seq *sizes;
	uint64_t n = 0;

	if (value_get_count(value_find(root, "param_n_sub_params"), &n) ||
	    !value_get_count(value_find(state, "partition_dim"), &n))
		return n;
	sizes = value_items(value_item(value_find(state, "shape"), n));
	return sizes ? sizes->n : 0;
}

/* Find the tensor in a file's content, with the file's description of it. */
static const struct value *find_tensor(struct load_tensor *t, const struct value *root)
{
	const struct value *v = value_find(root, "param");

	t->sorted_thirds = count_parts(root) == 3;
	return v ? v : root;
}

/* Describe the tensor of a file in a mount, without reading the file.  False if that is not
 * possible. */
static bool begin_head(struct load_tensor *t)
{
	const struct extent_map *const map = &t->extents;
	struct tensor *const x = &t->tensor;
	struct arena arena = { 0 };
	struct value *root;
	bool found = mount_head(&t->file, map, &arena, &root) &&
		     !tensor_from_value(find_tensor(t, root), t->name, x, NULL) &&
		     tensor_is_contiguous(x);

	if (found) {
		const size_t size = dtype_size(x->dtype);

		found = x->storage_numel * size == map->v[map->n - 1].start - map->v[1].start;
		t->at = map->v[1].start + x->storage_offset * size;
	}
	arena_done(&arena);
	return found;
}

int load_universal_begin(struct load_tensor *t, const char *state, struct errmsg *err)
{
	struct load *const l = t->l;
	struct source file;
	struct ptfile pt;
	int rc = set_path(l, t->name + l->skip, state ? state : "fp32", t->path, err)
			 ?: io_open(l->o->u, t->path, NULL, &file, err);

	if (rc)
		return rc;
	t->file = file;
	rc = mount_extents(&l->mount, &file, &t->extents, err);
	if (rc || begin_head(t))
		return rc;
	t->file = (struct source){ .fd = -1 };
	rc = ptfile_open_source(&pt, &file, err);
	if (rc)
		return rc;
	rc = ptfile_run(&pt, find_tensor(t, pt.root), t->name, &t->tensor, &t->at, err);
	if (!rc) {
		t->file = file;
		pt.src = (struct source){ .fd = -1 };
	}
	ptfile_close(&pt);
	return rc;
}

/* The attention masks that older versions of Hugging Face's GPT-2 saved. */
static bool is_mask(const char *name)
{
	return names_ends_with(name, ".attn.bias") || names_ends_with(name, ".attn.masked_bias");
}

/* Read the file of a parameter's masters. */
static int read_param(const struct load *l, const char *name, struct bytebuf *out,
		      struct errmsg *err)
{
	char path[PATH_MAX];
	struct source src;
	int rc = set_path(l, name, "fp32", path, err);

	if (!rc)
		rc = io_open(l->o->u, path, NULL, &src, err);
	if (rc)
		return rc;
	bytebuf_reserve(out, (size_t)src.size);
	rc = out->failed ? errmsg_nomem(err, NULL)
			 : source_read(&src, out->data, (size_t)src.size, 0, err);
	out->len = (size_t)src.size;
	source_close(&src);
	return rc;
}

/* This model's head is its embedding: a separate head would be lost. */
static int check_head(const struct load *l, struct errmsg *err)
{
	struct bytebuf head = { 0 }, embedding = { 0 };
	int rc;

	rc = read_param(l, "lm_head.weight", &head, err);
	if (!rc)
		rc = read_param(l, &(PREFIX "wte.weight")[l->skip], &embedding, err);
	if (!rc && (head.len != embedding.len || memcmp(head.data, embedding.data, head.len) != 0))
		rc = errmsg_set(err, -EINVAL,
				"%s: checkpoint of another model: its lm_head.weight differs from its wte.weight",
				l->got->path);
	bytebuf_done(&head);
	bytebuf_done(&embedding);
	return rc;
}

/* Entries of zero/. */
struct names {
	const struct load *l;
	struct dirlist dir;
};

/* Check one entry.  Entries of parameters contain an optimizer state; those of buffers, frozen
 * parameters and aliases of tied ones do not. */
static int check_entry(void *ctx, size_t i, struct errmsg *err)
{
	const struct names *names = ctx;
	const struct load *l = names->l;
	const char *name = names->dir.v[i].name;
	char full[NAME_MAX + sizeof(PREFIX)], path[PATH_MAX];
	struct attrs a;
	int rc;

	if (name[0] == '.' || !names_is_param(name) || (l->weights && is_mask(name)))
		return 0;
	if (l->weights && strcmp(name, "lm_head.weight") == 0)
		return check_head(l, err);
	snprintf(full, sizeof(full), "%s%s", l->skip ? PREFIX : "", name);
	rc = set_path(l, name, "exp_avg", path, err);
	return rc || io_stat(l->o->u, path, 0, &a, NULL, NULL) ? rc : load_is_param(l, full, err);
}

int load_universal_check(const struct load *l, struct errmsg *err)
{
	struct names names = { .l = l };
	char path[PATH_MAX];
	int rc = load_path(path, l->got->path, "zero", err);

	if (!rc)
		rc = io_list(l->o->u, path, 0, &names.dir, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < l->whole.nparams && !rc; i++)
		if (!dirlist_find(&names.dir, l->tensors[i].name + names.l->skip))
			rc = load_missing(l, l->tensors[i].name, NULL, err);
	if (!rc)
		rc = parallel_far(names.dir.n, 1, check_entry, &names, err);
	dirlist_done(&names.dir);
	return rc;
}

int load_look_at_tree(struct load *l)
{
	struct uckpt *const u = l->o->u;
	const char *const dir = l->got->path;
	char path[PATH_MAX];
	struct source file;
	int rc;

	l->weights = load_mode(u, dir, "source.txt") != 0;
	if (!load_mode(u, dir, "zero/" PREFIX "wte.weight") && load_mode(u, dir, "zero/wte.weight"))
		l->skip = strlen(PREFIX);
	/* A missing file is reported by load_universal_check. */
	if (set_path(l, l->tensors[GPT2_WTE].name + l->skip, "fp32", path, NULL) ||
	    io_open(u, path, NULL, &file, NULL))
		return 0;
	rc = mount_open(&l->mount, u, &file, l->err);
	source_close(&file);
	l->shards = l->mount.shards;
	return rc;
}
