/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that the optimizer does not own. For stages 1 and 2 the converter adds
 * an fp32.pt for everything else in `module`: frozen parameters, tied aliases,
 * buffers (ds_to_universal.py main, "parameters that have not
 * received a gradient").
 */
#include <errno.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/model/rank_params_build.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"

static int set_tensor(const struct rank_params_loader *l, struct slice *p,
		      const struct tensor *t, uint64_t storage, uint32_t file)
{
	struct arena *const a = &l->c->arena;
	struct module_tensor *const m = arena_alloc(a, sizeof(*m));

	if (!m)
		return errmsg_nomem(l->err, l->file);
	*m = (struct module_tensor){
		.file = file,
		.dtype = t->dtype,
		.requires_grad = t->requires_grad,
		.ndim = t->ndim,
		.shape = arena_copy(a, t->shape, t->ndim * sizeof(*t->shape)),
		.stride = arena_copy(a, t->stride, t->ndim * sizeof(*t->stride)),
		.numel = t->numel,
		.storage = storage,
		.storage_offset = t->storage_offset,
		.storage_numel = t->storage_numel,
	};
	if (!m->shape || !m->stride)
		return errmsg_nomem(l->err, l->file);
	p->module = m;
	p->ndim = m->ndim;
	p->shape = m->shape;
	p->numel = m->numel;
	return 0;
}

int rank_params_add_tensor(const struct rank_params_loader *l,
			   const struct ptfile *pt, uint32_t file,
			   const struct value *name, const struct value *v)
{
	struct tensor t;
	struct slice *p;
	uint64_t storage;
	int rc;

	if (!value_is_cstr(name) || !names_is_param(name->str.p) || !tensor_is(v))
		return rank_params_warn(l, "module: %s: left out: %s",
					value_cstr(name),
					tensor_is(v)
						? "cannot be a directory's name"
						: "not a tensor");
	rc = ptfile_tensor(pt, v, name->str.p, &t, &storage, l->err);
	if (rc == -ENOTSUP ||
	    (!rc && !(cast_knows(t.dtype) && tensor_is_dense(&t))))
		return rank_params_warn(l, "module: %s: left out: %s",
					name->str.p, "no dense real tensor");
	if (rc)
		return rc;
	p = rank_params_add_slice(l, name->str.p);
	return p ? set_tensor(l, p, &t, storage, file)
		 : errmsg_nomem(l->err, l->file);
}

int rank_params_load_module(const struct rank_params_loader *l)
{
	const struct value_dict *const module = l->module;
	const size_t owned = l->c->nslices;
	int rc = 0;

	/* In a pipeline stage `module` is None: the layers have files of their
	 * own, which the converter ignores. */
	if (!module)
		return l->dir->nlayer
			       ? 0
			       : ERRMSG_FILE(l, -EBADMSG,
					     "has no module, and no layer_*"
					     " files of a pipeline beside it");
	for (size_t i = 0; !rc && i < module->n; i++) {
		const struct value *const name = module->v[i].key;

		if (value_is_cstr(name) &&
		    rank_params_find_among(l->c, owned, name->str.p))
			continue;
		rc = rank_params_add_tensor(l, l->pt, l->c->mp, name,
					    module->v[i].val);
	}
	return rc;
}
