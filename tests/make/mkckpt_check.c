/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a planned tree like torch, and compares every element with the one that mkckpt.c put into
 * the shards.
 */
#include "tests/make/mkckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"

static uint64_t numel_of(const uint64_t *shape, unsigned ndim)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < ndim; i++)
		n *= shape[i];
	return n;
}

/* A file of the view, opened like torch opens it. */
struct reading {
	struct bytebuf bytes;
	struct ptfile pt;
	struct tensor t;
	const uint8_t *data; /* element 0 of the storage */
};

static int read_all(struct view *v, uint64_t node, struct bytebuf *out, struct errmsg *err)
{
	struct view_stat st;
	struct vfile *f;
	int64_t got;
	int rc = view_stat(v, node, &st, err);

	if (!rc)
		rc = view_file_open(v, node, &f, err);
	if (rc)
		return rc;
	out->data = malloc(st.size + 1);
	if (!out->data)
		abort();
	out->cap = st.size + 1;
	got = vfile_read(f, out->data, st.size + 1, 0, err);
	out->len = got < 0 ? 0 : (size_t)got;
	vfile_free(f);
	if (got >= 0 && (uint64_t)got != st.size)
		return errmsg_set(err, -1, "size is not what stat said");
	return got < 0 ? (int)got : 0;
}

/* Parameter directories may contain others. */
static int find_param(struct view *v, const char *param, uint64_t *node, struct errmsg *err)
{
	char *path = strdup(param), *left = path, *name;
	int rc = 0;

	*node = VIEW_ZERO;
	while (!rc && (name = strsep(&left, "/")))
		rc = view_lookup(v, *node, name, node, err);
	free(path);
	return rc;
}

static int open_tensor(struct view *view, const char *param, const char *state, struct reading *r,
		       struct errmsg *err)
{
	const struct value *v;
	char name[64];
	struct source src;
	uint64_t node, at;
	int rc;

	snprintf(name, sizeof(name), "%s.pt", state);
	rc = find_param(view, param, &node, err);
	if (!rc)
		rc = view_lookup(view, node, name, &node, err);
	if (!rc)
		rc = read_all(view, node, &r->bytes, err);
	if (rc)
		return rc;
	source_init_span(&src, name, (struct span){ r->bytes.data, r->bytes.len });
	rc = ptfile_open_source(&r->pt, &src, err);
	if (rc)
		return rc;
	v = value_find(r->pt.root, "param");
	rc = ptfile_tensor(&r->pt, v ? v : r->pt.root, "tensor", &r->t, &at, err);
	if (!rc)
		r->data = r->bytes.data + at;
	return rc;
}

static bool check_state(const struct mkckpt *c, struct view *v, size_t i, unsigned s, char *why,
			size_t why_len)
{
	const struct mkckpt_param *param = &c->params[i];
	const uint64_t n = numel_of(param->shape, param->ndim);
	struct reading r = { .pt.src.fd = -1 };
	struct errmsg err = { "" };
	bool ok = false;

	if (open_tensor(v, param->name, mkckpt_state_names[s], &r, &err))
		goto out;
	errmsg_set(&err, 0, "wrong type or size");
	if (r.t.dtype != DTYPE_F32 || r.t.numel != n)
		goto out;
	ok = true;
	for (uint64_t k = 0; ok && k < n; k++) {
		const uint32_t got = get_le32(r.data + 4 * k);
		const uint32_t expected = mkckpt_element(c, i, s, k);

		ok = got == expected;
		if (!ok)
			errmsg_set(&err, 0, "element %llu is %08x, expected %08x",
				   (unsigned long long)k, got, expected);
	}
out:
	if (!ok)
		snprintf(why, why_len, "%s/%s: %s", param->name, mkckpt_state_names[s], err.text);
	ptfile_close(&r.pt);
	bytebuf_done(&r.bytes);
	return ok;
}

static bool check_extra(const struct mkckpt *c, struct view *v, size_t i, char *why, size_t why_len)
{
	const struct mkckpt_extra *e = &c->extras[i];
	struct reading r = { .pt.src.fd = -1 };
	struct errmsg err = { "wrong elements" };
	bool ok = !open_tensor(v, e->name, "fp32", &r, &err);

	ok = ok && r.t.dtype == DTYPE_F32 && r.t.numel == numel_of(e->shape, e->ndim);
	for (uint64_t k = 0; ok && k < r.t.numel; k++) {
		const uint32_t bits = get_le32(r.data + 4 * k);
		float f;

		memcpy(&f, &bits, sizeof(f));
		ok = f == (float)((e->first + k) % 100);
	}
	if (!ok)
		snprintf(why, why_len, "%s: %s", e->name, err.text);
	ptfile_close(&r.pt);
	bytebuf_done(&r.bytes);
	return ok;
}

bool mkckpt_check(const struct mkckpt *c, struct view *v, char *why, size_t why_len)
{
	for (size_t i = 0; i < c->nparams; i++)
		/* Parameters without elements have no slice in stages 1, 2. */
		for (unsigned s = 0; s < MKCKPT_STATES; s++)
			if ((c->stage == 3 || numel_of(c->params[i].shape, c->params[i].ndim)) &&
			    !check_state(c, v, i, s, why, why_len))
				return false;
	for (size_t i = 0; c->stage < 3 && i < c->nextras; i++)
		if (!check_extra(c, v, i, why, why_len))
			return false;
	return true;
}
