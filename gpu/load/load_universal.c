/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A universal checkpoint as a source: zero/<parameter>/<state>.pt, a dict
 * with the tensor under `param` (ZeRO-1 and 2) or the tensor itself, flat
 * (ZeRO-3).  Where the file is in a mount that tells where its bytes lie
 * (ckpt/vfile/ucfs_ioctl.h), they are read from there, and the file's own end, for
 * which the mount would have to read them all, is left alone.
 *
 * A tree that was made of weights of Hugging Face (source.txt tells) has what
 * these have: names as they are, and states for what is no parameter.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "gpu/read/pt_head.h"
#include "gpu/read/upload.h"
#include "gpu/load/load_impl.h"
#include "gpu/load/load_tensor.h"
#include "gpu/read/mount_extents.h"

struct universal_source {
	struct load_source s;
	char path[PATH_MAX]; /* of the file that is being read */
	struct source src;   /* open: one of the two below has it */
	bool in_front;
	struct front front;
	bool in_file;
	struct ptfile pt;
	uint64_t at; /* of the tensor's element 0 */
	struct origin origin;
	/* Of weights of Hugging Face: what is no parameter has states, too. */
	bool weights;
	size_t skip; /* letters of a parameter's name that the tree leaves out */
};

/* The prefix that a GPT-2 without a head has not. */
#define PREFIX "transformer."

static struct universal_source *of(struct load_source *s)
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

static const struct value *find_tensor(const struct value *root)
{
	const struct value *v = value_find(root, "param");

	return v ? v : root;
}

/*
 * In a mount: the pickle from the beginning of the file, and the place of the
 * storage from the mount.  -ENOTSUP if the file is not in one, or not as
 * expected.
 */
static int begin_front(struct universal_source *u, const char *param,
		       struct errmsg *err)
{
	struct tensor *t = &u->s.tensor;
	uint64_t start = 0, len = 0;
	int rc;

	if (!origin_storage(&u->origin, &start, &len))
		return -ENOTSUP;
	rc = front_read(&u->front, &u->src, start, err);
	if (rc)
		return rc;
	u->in_front = true;
	rc = tensor_from_value(find_tensor(u->front.root), param, t, err);
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

	u->src.fd = -1; /* it has been taken over, or closed */
	if (rc)
		return rc;
	u->in_file = true;
	u->src = u->pt.src;
	return load_tensor_at(&u->pt, find_tensor(u->pt.root), param,
			      &u->s.tensor, &u->at, err);
}

static void end(struct load_source *s)
{
	struct universal_source *u = of(s);

	if (u->in_front)
		front_done(&u->front);
	if (u->in_file)
		ptfile_close(&u->pt);
	else if (u->src.fd >= 0)
		source_close(&u->src);
	u->src.fd = -1;
	u->in_front = u->in_file = false;
}

static int begin(struct load_source *s, const char *param, const char *state,
		 struct errmsg *err)
{
	struct universal_source *u = of(s);
	int rc = set_path(u, param, state ? state : "fp32", err);

	if (rc)
		return rc;
	rc = source_open(&u->src, u->path, err);
	if (rc) {
		u->src.fd = -1;
		return rc;
	}
	rc = origin_begin(&u->origin, u->src.fd, err);
	if (!rc)
		rc = begin_front(u, param, err);
	if (rc == -ENOTSUP)
		rc = begin_file(u, param, err);
	if (rc)
		end(s);
	return rc;
}

/* Floats of the file from where they lie. */
static int send_origin(struct universal_source *u, uint64_t off, size_t n,
		       float *to, struct intake *q, struct errmsg *err)
{
	int rc = 0;

	while (n && !rc) {
		struct origin_run run;

		rc = origin_find(&u->origin, &u->src, off, n * sizeof(*to), &run,
				 err);
		if (!rc && run.len % sizeof(*to))
			rc = errmsg_set(err, -EIO,
					"%s: an element lies in two places",
					u->path);
		if (!rc)
			rc = intake_add(q, &run.file, run.off, run.len,
					DTYPE_F32, to, err);
		to += run.len / sizeof(*to);
		off += run.len;
		n -= run.len / sizeof(*to);
	}
	u->s.direct = u->origin.direct;
	return rc;
}

static int send(struct load_source *s, uint64_t first, size_t n, float *to,
		struct intake *q, struct errmsg *err)
{
	struct universal_source *u = of(s);
	const enum dtype dtype = s->tensor.dtype;
	const size_t size = dtype_size(dtype);
	const uint64_t off = u->at + first * size;

	s->bytes += n * size;
	if (dtype == DTYPE_F32)
		return send_origin(u, off, n, to, q, err);
	return intake_add(q, &u->src, off, n * size, dtype, to, err);
}

static bool ends_with(const char *s, const char *tail)
{
	const size_t n = strlen(s), t = strlen(tail);

	return n >= t && strcmp(s + n - t, tail) == 0;
}

/* The masks that Hugging Face's GPT-2 once saved with its weights. */
static bool is_mask(const char *name)
{
	return ends_with(name, ".attn.bias") ||
	       ends_with(name, ".attn.masked_bias");
}

static int read_whole(const char *path, struct bytebuf *out, struct errmsg *err)
{
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	bytebuf_reserve(out, (size_t)src.size);
	rc = out->failed ? errmsg_set(err, -ENOMEM, "out of memory")
			 : source_read(&src, out->data, (size_t)src.size, 0, err);
	out->len = (size_t)src.size;
	source_close(&src);
	return rc;
}

/* The head of the model is its embedding: another one would be lost. */
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
		rc = errmsg_set(err, -EINVAL,
				"%s: is of another model: its lm_head.weight is not"
				" its wte.weight",
				u->s.path);
	bytebuf_done(&head);
	bytebuf_done(&embedding);
	return rc;
}

/* One directory of zero/: those of parameters have an optimizer state, others
 * are buffers, frozen parameters and other names of tied ones. */
static int see_entry(struct universal_source *u, const char *name,
		     int (*see)(void *ctx, const char *param), void *ctx,
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
	return rc || access(u->path, F_OK) != 0 ? rc : see(ctx, full);
}

static int each(struct load_source *s, int (*see)(void *ctx, const char *param),
		void *ctx, struct errmsg *err)
{
	struct universal_source *u = of(s);
	char path[PATH_MAX];
	struct dirent *e;
	DIR *dir;
	int rc = 0;

	if (snprintf(path, sizeof(path), "%s/zero", s->path) >=
		    (int)sizeof(path) ||
	    !(dir = opendir(path)))
		return errmsg_set(err, -errno, "%s: cannot list: %s", s->path,
				  strerror(errno));
	while (!rc && (e = readdir(dir))) {
		if (e->d_name[0] != '.')
			rc = see_entry(u, e->d_name, see, ctx, err);
	}
	closedir(dir);
	return rc;
}

static void close_source(struct load_source *s)
{
	end(s);
	origin_done(&of(s)->origin);
}

static bool has(const struct universal_source *u, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", u->s.path, name) <
		       (int)sizeof(path) &&
	       access(path, F_OK) == 0;
}

static int open_source(struct load_source *s, unsigned ranks, struct errmsg *err)
{
	struct universal_source *u = of(s);

	(void)ranks; /* of any number */
	(void)err;
	u->src.fd = -1;
	u->weights = has(u, "source.txt");
	if (!has(u, "zero/" PREFIX "wte.weight") && has(u, "zero/wte.weight"))
		u->skip = strlen(PREFIX);
	return 0;
}

const struct load_ops load_universal_ops = {
	.size = sizeof(struct universal_source),
	.open = open_source,
	.begin = begin,
	.send = send,
	.end = end,
	.each = each,
	.close = close_source,
};
