/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of views say of their tensors, as JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ckpt/api/api.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/state.h"

static void begin_tensor(struct bytebuf *out, const char *name, enum dtype dtype,
			 const uint64_t *shape, unsigned ndim)
{
	bytebuf_add_str(out, out->len > 1 ? ",\n{\"name\": " : "{\"name\": ");
	json_write_string(out, name, false);
	bytebuf_add_format(out, ", \"dtype\": \"%s\", \"shape\": [",
			   dtype_name(dtype));
	for (unsigned i = 0; i < ndim; i++)
		bytebuf_add_format(out, "%s%" PRIu64, i ? ", " : "", shape[i]);
	bytebuf_add_str(out, "], ");
}

static void end_tensor(struct bytebuf *out, uint64_t offset, uint64_t bytes)
{
	bytebuf_add_format(out, "\"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
			   offset, bytes);
}

/* A number is in the file's pickle: a Python int or float. */
static void end_number(struct bytebuf *out, const struct state *s)
{
	int64_t i;
	double f;

	memcpy(&i, s->number, sizeof(i));
	memcpy(&f, s->number, sizeof(f));
	if (s->t.dtype == DTYPE_I64)
		bytebuf_add_format(out, "\"value\": %" PRId64 "}", i);
	else if (isfinite(f))
		bytebuf_add_format(out, "\"value\": %.17g}", f);
	else
		bytebuf_add_str(out, "\"value\": null}");
}

/* The tensor, or the number, of zero/<parameter>/<state>.pt. */
static int describe_state(const struct source *src, struct bytebuf *out,
			  struct errmsg *err)
{
	struct state s;
	const int rc = state_open_source(&s, src, err);

	if (rc)
		return rc;
	if (!s.is_number && !tensor_is_contiguous(&s.t)) {
		state_close(&s);
		return errmsg_set(err, -ENOTSUP, "the tensor has gaps");
	}
	begin_tensor(out, "", s.t.dtype, s.t.shape, s.t.ndim);
	if (s.is_number)
		end_number(out, &s);
	else
		end_tensor(out,
			   s.at + s.t.storage_offset * dtype_size(s.t.dtype),
			   s.t.numel * dtype_size(s.t.dtype));
	state_close(&s);
	return 0;
}

static int describe_safetensors(const struct source *src, struct bytebuf *out,
				struct errmsg *err)
{
	struct safetensors s;
	const int rc = safetensors_read(&s, src, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < s.n; i++) {
		const struct safetensors_tensor *const t = &s.v[i];

		begin_tensor(out, t->name, t->dtype, t->shape, t->ndim);
		end_tensor(out, t->offset, t->numel * dtype_size(t->dtype));
	}
	safetensors_done(&s);
	return 0;
}

static int read_file(const struct source *s, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const int64_t n = uckpt_file_read(s->ctx, buf, len, off,
					  (struct uckpt_error *)err);

	if (n < 0)
		return (int)n;
	return (size_t)n == len ? 0 : errmsg_set(err, -EBADMSG, "ends early");
}

/* The caller closes the file. */
static void leave_open(struct source *s)
{
	(void)s;
}

/* Describe the tensors of a file that nobody else reads. */
static int describe(struct uckpt_file *f, struct bytebuf *out, struct errmsg *err)
{
	static const struct source_ops ops = { .read = read_file,
					       .close = leave_open };
	static const char zip[4] = { 'P', 'K', 3, 4 };
	const struct source src = { .name = "",
				    .size = uckpt_file_size(f),
				    .fd = -1,
				    .ops = &ops,
				    .ctx = f };
	char magic[sizeof(zip)];
	int rc = f->f.v ? vfile_skip_sums(f->f.v, err) : 0;

	if (!rc && src.size < sizeof(magic))
		rc = -ENOTSUP;
	if (!rc)
		rc = read_file(&src, magic, sizeof(magic), 0, err);
	if (rc)
		return rc;
	rc = memcmp(magic, zip, sizeof(zip)) == 0
		     ? describe_state(&src, out, err)
		     : describe_safetensors(&src, out, err);
	return rc == -EBADMSG ? -ENOTSUP : rc;
}

int uckpt_file_tensors(struct uckpt_file *f,
		       void (*put)(void *arg, const char *text, size_t len),
		       void *arg, struct uckpt_error *error)
{
	struct errmsg *const err = api_errmsg(error);
	struct bytebuf out = { 0 };
	struct uckpt_file *own;
	int rc;

	if (!f || !put)
		return api_refuse(err);
	rc = uckpt_file_open(f->u, f->node, &own, error);
	if (rc)
		return rc;
	bytebuf_add_u8(&out, '[');
	rc = describe(own, &out, err);
	bytebuf_add_str(&out, "]\n");
	if (!rc && out.failed)
		rc = errmsg_nomem(err, NULL);
	if (!rc)
		put(arg, (const char *)out.data, out.len);
	uckpt_file_close(own);
	bytebuf_done(&out);
	return rc;
}
