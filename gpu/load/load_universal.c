/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A universal checkpoint as a source: zero/<parameter>/<state>.pt is a dict
 * with the tensor under `param` (ZeRO-1 and 2), or the flat tensor itself
 * (ZeRO-3).  If the file is in a ucfs mount, its bytes are read from the shards
 * that the mount reports (ckpt/vfile/ucfs_ioctl.h); the end of the file is not
 * read, since the mount would have to read the whole tensor for its CRC.
 *
 * Trees made from Hugging Face weights, which source.txt identifies, use
 * Hugging Face's parameter names, and have states for tensors that are no
 * parameters.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "gpu/load/load_impl.h"
#include "gpu/load/load_tensor.h"
#include "gpu/read/mount_extents.h"
#include "gpu/read/pt_head.h"
#include "gpu/read/upload.h"

struct universal_source {
	struct load_source s;
	char path[PATH_MAX]; /* of the file being read */
	struct source src;   /* the same file; `pt` owns it if has_file */
	bool has_head;
	struct pt_head head;
	bool has_file;
	struct ptfile pt;
	uint64_t at; /* file offset of the tensor's first element */
	struct mount_extents extents;
	/* Made from Hugging Face weights: also non-parameters have states. */
	bool weights;
	size_t skip; /* length of the name prefix that the tree omits */
};

/* The prefix that a GPT-2 without a head lacks. */
#define PREFIX "transformer."

static struct universal_source *load_universal_of(struct load_source *s)
{
	return (struct universal_source *)s;
}

static int set_path(struct universal_source *u, const char *param,
		    const char *state, struct errmsg *err)
{
	if (snprintf(u->path, sizeof(u->path), "%s/zero/%s/%s.pt", u->s.path,
		     param + u->skip, state) < (int)sizeof(u->path))
		return 0;
	return errmsg_set(err, -ENAMETOOLONG, "%s: name too long", u->s.path);
}

/* The parts that a file's slices were sorted into: a number, or a SubparamShape,
 * whose dimension that was cut is a tuple of their sizes.  0: none. */
static size_t count_parts(const struct value *root)
{
	const struct value *spec = value_find(root, "sub_param_shape");
	const struct value *state = spec && spec->kind == VALUE_NEWOBJ
					    ? spec->obj->state
					    : NULL;
	const struct value_seq *sizes;
	uint64_t n = 0;

	if (value_get_count(value_find(root, "param_n_sub_params"), &n) ||
	    !value_get_count(value_find(state, "partition_dim"), &n))
		return n;
	sizes = value_items(value_item(value_find(state, "shape"), n));
	return sizes ? sizes->n : 0;
}

/* Find the tensor in a file's content, and what the file says about it. */
static const struct value *find_tensor(struct universal_source *u,
				       const struct value *root)
{
	const struct value *v = value_find(root, "param");

	u->s.sorted_thirds = count_parts(root) == 3;
	return v ? v : root;
}

/*
 * In a mount: read the pickle from the beginning of the file, and ask the mount
 * for the storage's extents. -ENOTSUP if the file is not in a mount, or has an
 * unexpected form.
 */
static int begin_head(struct universal_source *u, const char *param,
		      struct errmsg *err)
{
	struct tensor *t = &u->s.tensor;
	uint64_t start = 0, len = 0;
	int rc;

	if (!mount_extents_storage(&u->extents, &start, &len))
		return -ENOTSUP;
	rc = pt_head_read(&u->head, &u->src, start, err);
	if (rc)
		return rc;
	u->has_head = true;
	rc = tensor_from_value(find_tensor(u, u->head.root), param, t, err);
	if (rc)
		return rc;
	u->at = start + t->storage_offset * dtype_size(t->dtype);
	if (t->storage_numel * dtype_size(t->dtype) != len)
		return -ENOTSUP;
	return load_tensor_check(t, u->path, param, err);
}

static int begin_file(struct universal_source *u, const char *param,
		      struct errmsg *err)
{
	int rc = ptfile_open_source(&u->pt, &u->src, err);

	u->src.fd = -1; /* `pt` owns the file now, or has closed it */
	if (rc)
		return rc;
	u->has_file = true;
	u->src = u->pt.src;
	return load_tensor_at(&u->pt, find_tensor(u, u->pt.root), param,
			      &u->s.tensor, &u->at, err);
}

static void load_universal_end(struct load_source *s)
{
	struct universal_source *u = load_universal_of(s);

	if (u->has_head)
		pt_head_done(&u->head);
	if (u->has_file)
		ptfile_close(&u->pt);
	else if (u->src.fd >= 0)
		source_close(&u->src);
	u->src.fd = -1;
	u->has_head = u->has_file = false;
}

static int load_universal_begin(struct load_source *s, const char *param,
				const char *state, struct errmsg *err)
{
	struct universal_source *u = load_universal_of(s);
	int rc = set_path(u, param, state ? state : "fp32", err);

	if (rc)
		return rc;
	rc = source_open(&u->src, u->path, err);
	if (rc) {
		u->src.fd = -1;
		return rc;
	}
	rc = mount_extents_begin(&u->extents, u->src.fd, err);
	if (!rc)
		rc = begin_head(u, param, err);
	if (rc == -ENOTSUP)
		rc = begin_file(u, param, err);
	if (rc)
		load_universal_end(s);
	return rc;
}

/* Queue reads of the file's floats from the shards. */
static int send_extents(struct universal_source *u, uint64_t off, size_t n,
			float *to, struct upload *q, struct errmsg *err)
{
	int rc = 0;

	while (n && !rc) {
		struct mount_extents_run run;

		rc = mount_extents_find(&u->extents, &u->src, off,
					n * sizeof(*to), &run, err);
		if (!rc && run.len % sizeof(*to))
			rc = errmsg_set(err, -EIO,
					"%s: an element spans two extents",
					u->path);
		if (!rc)
			rc = upload_add(q, &run.file, run.off, run.len,
					DTYPE_F32, to, err);
		to += run.len / sizeof(*to);
		off += run.len;
		n -= run.len / sizeof(*to);
	}
	u->s.direct = u->extents.direct;
	return rc;
}

static int load_universal_send(struct load_source *s, uint64_t first, size_t n,
			       float *to, struct upload *q, struct errmsg *err)
{
	struct universal_source *u = load_universal_of(s);
	const enum dtype dtype = s->tensor.dtype;
	const size_t size = dtype_size(dtype);
	const uint64_t off = u->at + first * size;

	assert(first + n <= s->tensor.numel);
	s->bytes += n * size;
	if (dtype == DTYPE_F32)
		return send_extents(u, off, n, to, q, err);
	return upload_add(q, &u->src, off, n * size, dtype, to, err);
}

/* The attention masks that older versions of Hugging Face's GPT-2 saved. */
static bool is_mask(const char *name)
{
	return names_ends_with(name, ".attn.bias") ||
	       names_ends_with(name, ".attn.masked_bias");
}

static int read_whole(const char *path, struct bytebuf *out, struct errmsg *err)
{
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	bytebuf_reserve(out, (size_t)src.size);
	rc = out->failed
		     ? errmsg_nomem(err, NULL)
		     : source_read(&src, out->data, (size_t)src.size, 0, err);
	out->len = (size_t)src.size;
	source_close(&src);
	return rc;
}

/* This model's head is its embedding: a separate head would be lost. */
static int check_head(struct universal_source *u, struct errmsg *err)
{
	struct bytebuf head = { 0 }, embedding = { 0 };
	const size_t skip = u->skip;
	int rc;

	u->skip = 0;
	rc = set_path(u, "lm_head.weight", "fp32", err);
	u->skip = skip;
	if (!rc)
		rc = read_whole(u->path, &head, err);
	if (!rc)
		rc = set_path(u, PREFIX "wte.weight", "fp32", err);
	if (!rc)
		rc = read_whole(u->path, &embedding, err);
	if (!rc && (head.len != embedding.len ||
		    memcmp(head.data, embedding.data, head.len) != 0))
		rc = errmsg_set(
			err, -EINVAL,
			"%s: checkpoint of another model: its lm_head.weight "
			"differs from its wte.weight",
			u->s.path);
	bytebuf_done(&head);
	bytebuf_done(&embedding);
	return rc;
}

/* Visit one directory of zero/. Those of parameters contain an optimizer state;
 * buffers, frozen parameters and aliases of tied ones do not. */
static int check_entry(struct universal_source *u, const char *name,
		       struct errmsg *err)
{
	char full[NAME_MAX + sizeof(PREFIX)];
	int rc;

	if (u->weights && is_mask(name))
		return 0;
	if (u->weights && strcmp(name, "lm_head.weight") == 0)
		return check_head(u, err);
	snprintf(full, sizeof(full), "%s%s", u->skip ? PREFIX : "", name);
	rc = set_path(u, full, "exp_avg", err);
	return rc || access(u->path, F_OK) != 0 ? rc
						: load_known(&u->s, full, err);
}

static int load_universal_check(struct load_source *s, struct errmsg *err)
{
	struct universal_source *u = load_universal_of(s);
	char path[PATH_MAX];
	struct dirent *e;
	DIR *dir;
	int rc = 0;

	if (snprintf(path, sizeof(path), "%s/zero", s->path) >=
		    (int)sizeof(path) ||
	    !(dir = opendir(path)))
		return errmsg_errno(err, s->path, "cannot list");
	while (!rc && (e = readdir(dir))) {
		if (e->d_name[0] != '.')
			rc = check_entry(u, e->d_name, err);
	}
	closedir(dir);
	return rc;
}

static void load_universal_close_source(struct load_source *s)
{
	load_universal_end(s);
	mount_extents_done(&load_universal_of(s)->extents);
}

static bool has(const struct universal_source *u, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", u->s.path, name) <
		       (int)sizeof(path) &&
	       access(path, F_OK) == 0;
}

static int load_universal_open_source(struct load_source *s, struct errmsg *err)
{
	struct universal_source *u = load_universal_of(s);

	(void)err;
	u->src.fd = -1;
	u->weights = has(u, "source.txt");
	if (!has(u, "zero/" PREFIX "wte.weight") && has(u, "zero/wte.weight"))
		u->skip = strlen(PREFIX);
	return 0;
}

const struct load_ops load_universal_ops = {
	.size = sizeof(struct universal_source),
	.open = load_universal_open_source,
	.begin = load_universal_begin,
	.send = load_universal_send,
	.end = load_universal_end,
	.check = load_universal_check,
	.close = load_universal_close_source,
};
