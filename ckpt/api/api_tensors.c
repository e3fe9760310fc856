/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of views say of their tensors, as JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ckpt/api/api.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/state.h"
#include "ckpt/pickle/value.h"

static void add_numbers(struct bytebuf *out, const char *name,
			const uint64_t *v, unsigned n)
{
	bytebuf_add_format(out, "\"%s\": [", name);
	for (unsigned i = 0; i < n; i++)
		bytebuf_add_format(out, "%s%" PRIu64, i ? ", " : "", v[i]);
	bytebuf_add_str(out, "], ");
}

static void begin_tensor(struct bytebuf *out, const char *name, enum dtype dtype,
			 const uint64_t *shape, unsigned ndim)
{
	bytebuf_add_str(out, out->len > 1 ? ",\n{\"name\": " : "{\"name\": ");
	json_write_string(out, name, false);
	bytebuf_add_format(out, ", \"dtype\": \"%s\", ", dtype_name(dtype));
	add_numbers(out, "shape", shape, ndim);
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

static void add_tensor(struct bytebuf *out, const char *name,
		       const struct tensor *t, uint64_t storage)
{
	const size_t item = dtype_size(t->dtype);
	uint64_t n = t->numel;

	begin_tensor(out, name, t->dtype, t->shape, t->ndim);
	if (!tensor_is_contiguous(t)) {
		add_numbers(out, "strides", t->stride, t->ndim);
		n = 1; /* the storage has them all (tensor_parse) */
		for (unsigned i = 0; i < t->ndim; i++)
			n += (t->shape[i] - 1) * t->stride[i];
	}
	end_tensor(out, storage + t->storage_offset * item, n * item);
}

/* The tensor, or the number, of zero/<parameter>/<state>.pt. */
static int describe_state(const struct source *src, struct bytebuf *out,
			  struct errmsg *err)
{
	struct state s;
	int rc = state_open_source(&s, src, err);

	if (rc)
		return rc;
	if (s.is_number) {
		begin_tensor(out, "", s.t.dtype, s.t.shape, s.t.ndim);
		end_number(out, &s);
	} else {
		add_tensor(out, "", &s.t, s.at);
	}
	state_close(&s);
	return rc;
}

/* The tensors of a state dict, such as pytorch_model.bin; none of another object. */
static int describe_dict(const struct source *src, struct bytebuf *out,
			 struct errmsg *err)
{
	const struct value_dict *all;
	struct ptfile pt;
	int rc = ptfile_open_source(&pt, src, err);

	if (rc)
		return rc;
	all = value_find(pt.root, "param") ? NULL : value_pairs(pt.root);
	for (size_t i = 0; !rc && all && i < all->n; i++) {
		const struct value_pair *p = &all->v[i];
		struct tensor t;
		uint64_t storage;

		if (!value_is_cstr(p->key) || !tensor_is(p->val))
			continue;
		rc = ptfile_tensor(&pt, p->val, value_cstr(p->key), &t,
				   &storage, err);
		if (!rc)
			add_tensor(out, value_cstr(p->key), &t, storage);
	}
	ptfile_close(&pt);
	return rc;
}

static int describe_pt(const struct source *src, struct bytebuf *out,
		       struct errmsg *err)
{
	const size_t begun = out->len;
	const int rc = describe_dict(src, out, err);

	return rc || out->len > begun ? rc : describe_state(src, out, err);
}

static int describe_safetensors(const struct source *src, struct bytebuf *out,
				struct errmsg *err)
{
	struct safetensors s;
	const int rc = safetensors_read(&s, src, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < s.n; i++) {
		const struct safetensors_tensor *t = &s.v[i];

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
		     ? describe_pt(&src, out, err)
		     : describe_safetensors(&src, out, err);
	return rc == -EBADMSG ? -ENOTSUP : rc;
}

int uckpt_file_tensors(struct uckpt_file *f,
		       void (*put)(void *arg, const char *text, size_t len),
		       void *arg, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
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
