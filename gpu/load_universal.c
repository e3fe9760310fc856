/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A universal checkpoint as a source: zero/<parameter>/<state>.pt, a dict
 * with the tensor under `param` (ZeRO-1 and 2) or the tensor itself, flat
 * (ZeRO-3).  Where the file is in a mount that tells where its bytes lie
 * (ckpt/ucfs_ioctl.h), they are read from there.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ptfile.h"
#include "ckpt/value.h"
#include "gpu/load_impl.h"
#include "gpu/load_tensor.h"
#include "gpu/origin.h"

struct universal_source {
	struct load_source s;
	char path[PATH_MAX]; /* of the file that is being read */
	struct ptfile pt;
	bool open;
	uint64_t at;
	struct origin origin;
};

static struct universal_source *of(struct load_source *s)
{
	return (struct universal_source *)s;
}

static int set_path(struct universal_source *u, const char *param,
		    const char *state, struct errmsg *err)
{
	if (snprintf(u->path, sizeof(u->path), "%s/zero/%s/%s.pt", u->s.path,
		     param, state) < (int)sizeof(u->path))
		return 0;
	return errmsg_set(err, -ENAMETOOLONG, "%s: name too long", u->s.path);
}

static int begin(struct load_source *s, const char *param, const char *state,
		 struct errmsg *err)
{
	struct universal_source *u = of(s);
	const struct value *v;
	int rc = set_path(u, param, state ? state : "fp32", err);

	if (rc)
		return rc;
	rc = ptfile_open(&u->pt, u->path, err);
	if (rc)
		return rc;
	u->open = true;
	v = value_find(u->pt.root, "param");
	rc = load_tensor_at(&u->pt, v ? v : u->pt.root, param, &s->tensor,
			    &u->at, err);
	if (!rc)
		rc = origin_begin(&u->origin, u->pt.src.fd, err);
	return rc;
}

static int read_elements(struct load_source *s, uint64_t first, size_t n,
			 float *out, struct errmsg *err)
{
	struct universal_source *u = of(s);
	const size_t size = dtype_size(s->tensor.dtype);
	int rc;

	s->bytes += n * size;
	if (s->tensor.dtype != DTYPE_F32)
		return load_tensor_read(&u->pt.src, &s->tensor, u->at, first, n,
					out, err);
	rc = origin_read(&u->origin, &u->pt.src, out, n * size,
			 u->at + first * size, err);
	s->direct = u->origin.direct;
	return rc;
}

static void end(struct load_source *s)
{
	struct universal_source *u = of(s);

	if (u->open)
		ptfile_close(&u->pt);
	u->open = false;
}

/* Directories of zero/ that have an optimizer state: others are buffers,
 * frozen parameters and other names of tied ones. */
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
		if (e->d_name[0] == '.')
			continue;
		rc = set_path(u, e->d_name, "exp_avg", err);
		if (!rc && access(u->path, F_OK) == 0)
			rc = see(ctx, e->d_name);
	}
	closedir(dir);
	return rc;
}

static void close_source(struct load_source *s)
{
	end(s);
	origin_done(&of(s)->origin);
	free(s);
}

int load_open_universal(struct load_source **out, const char *path,
			struct errmsg *err)
{
	static const struct load_ops ops = { .begin = begin,
					     .read = read_elements,
					     .end = end,
					     .each = each,
					     .close = close_source };
	struct universal_source *u = calloc(1, sizeof(*u));

	if (!u)
		return errmsg_set(err, -ENOMEM, "out of memory");
	u->s = (struct load_source){ .ops = &ops, .path = path };
	*out = &u->s;
	return 0;
}
