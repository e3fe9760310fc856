/* SPDX-License-Identifier: Apache-2.0 */
/* Describes the tensors in files of views as JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/commands/api.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/value.h"

static void begin_tensor(struct bytebuf *out, const char *name, enum dtype dtype,
			 const uint64_t *shape, unsigned ndim)
{
	bytebuf_add_str(out, out->len > 1 ? ",\n{\"name\": " : "{\"name\": ");
	json_write_string(out, name, false);
	bytebuf_add_format(out, ", \"dtype\": \"%s\", \"shape\": ", dtype_name(dtype));
	bytebuf_add_list(out, shape, ndim);
}

static void end_tensor(struct bytebuf *out, uint64_t offset, uint64_t bytes)
{
	bytebuf_add_format(out, ", \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", offset, bytes);
}

static int add_tensor(struct bytebuf *out, const struct ptfile *pt, const struct value *v,
		      const char *name, struct errmsg *err)
{
	struct tensor t;
	uint64_t n, storage;
	const int rc = ptfile_tensor(pt, v, *name ? name : "tensor", &t, &storage, err);

	if (rc)
		return rc;
	begin_tensor(out, name, t.dtype, t.shape, t.ndim);
	n = t.numel;
	if (!tensor_is_contiguous(&t)) {
		bytebuf_add_str(out, ", \"strides\": ");
		bytebuf_add_list(out, t.stride, t.ndim);
		n = 1; /* check_view has shown that the storage has all elements */
		for (unsigned i = 0; i < t.ndim; i++)
			n += (t.shape[i] - 1) * t.stride[i];
	}
	end_tensor(out, storage + t.storage_offset * dtype_size(t.dtype), n * dtype_size(t.dtype));
	return 0;
}

/* Add a number from the file's pickle: a Python int or float. */
static int add_number(struct bytebuf *out, const struct value *v, struct errmsg *err)
{
	int64_t i;

	if (value_get_int(v, &i)) {
		begin_tensor(out, "", DTYPE_I64, NULL, 0);
		bytebuf_add_format(out, ", \"value\": %" PRId64 "}", i);
	} else if (v->kind == VALUE_FLOAT) {
		begin_tensor(out, "", DTYPE_F64, NULL, 0);
		if (isfinite(v->f))
			bytebuf_add_format(out, ", \"value\": %.17g}", v->f);
		else
			bytebuf_add_str(out, ", \"value\": null}");
	} else {
		return errmsg_set(err, -ENOTSUP, "the file holds a %s, expected tensors or a number",
				  value_kind_name(v));
	}
	return 0;
}

/* The tensors of a state dict, such as pytorch_model.bin, or the tensor or the number of
 * zero/<parameter>/<state>.pt. */
static int describe_pt(const struct source *src, struct bytebuf *out, struct errmsg *err)
{
	const size_t begun = out->len;
	const struct value *param;
	const struct value_dict *all;
	struct ptfile pt;
	int rc = ptfile_open_source(&pt, src, err);

	if (rc)
		return rc;
	param = value_find(pt.root, "param");
	all = param ? NULL : value_pairs(pt.root);
	for (size_t i = 0; !rc && all && i < all->n; i++)
		if (value_is_cstr(all->v[i].key) && tensor_is(all->v[i].val))
			rc = add_tensor(out, &pt, all->v[i].val, value_cstr(all->v[i].key), err);
	param = param ?: pt.root;
	if (!rc && out->len == begun)
		rc = tensor_is(param) ? add_tensor(out, &pt, param, "", err)
				      : add_number(out, param, err);
	ptfile_close(&pt);
	return rc;
}

static int describe_safetensors(const struct source *src, struct bytebuf *out, struct errmsg *err)
{
	struct safetensors s;
	const int rc = safetensors_read(&s, src, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < s.n; i++) {
		const struct stored *t = &s.v[i];

		begin_tensor(out, t->name, t->dtype, t->shape, t->ndim);
		end_tensor(out, t->storage, t->numel * dtype_size(t->dtype));
	}
	safetensors_done(&s);
	return 0;
}

static int read_file(const struct source *s, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const int64_t n = uckpt_file_read(s->ctx, buf, len, off, (struct uckpt_error *)err);

	if (n < 0)
		return (int)n;
	return (size_t)n == len ? 0 : errmsg_set(err, -EBADMSG, "ends early");
}

/* For a source whose file the caller closes. */
static void leave_open(struct source *s)
{
	(void)s;
}

/* Describe the tensors of a file that has no other readers. */
static int describe(struct uckpt_file *f, struct bytebuf *out, struct errmsg *err)
{
	static const struct source_ops ops = { .read = read_file, .close = leave_open };
	static const char zip[4] = { 'P', 'K', 3, 4 };
	const struct source src = {
		.name = "", .size = uckpt_file_size(f), .fd = -1, .ops = &ops, .ctx = f
	};
	char magic[sizeof(zip)];
	int rc = f->f.v ? vfile_skip_sums(f->f.v, err) : 0;

	if (!rc && src.size < sizeof(magic))
		rc = -ENOTSUP;
	if (!rc)
		rc = read_file(&src, magic, sizeof(magic), 0, err);
	if (rc)
		return rc;
	rc = memcmp(magic, zip, sizeof(zip)) == 0 ? describe_pt(&src, out, err)
						  : describe_safetensors(&src, out, err);
	return rc == -EBADMSG ? -ENOTSUP : rc;
}

int uckpt_file_tensors(struct uckpt_file *f, void (*put)(void *arg, const char *text, size_t len),
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
