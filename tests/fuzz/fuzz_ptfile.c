/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole .pt file of arbitrary bytes, in either of torch's containers: zip or chain of pickles.
 * Every tensor and storage that its values describe must lie within the file.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"

/* Most values to visit, since they may form a cyclic graph. */
#define VISITS_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_at(const struct ptfile *pt, const struct value *v,
		    unsigned *visits)
{
	const struct value_dict *const pairs = value_pairs(v);
	const struct value_seq *const items = value_items(v);
	uint64_t storage;
	struct tensor t;

	if (++*visits > VISITS_MAX)
		return;
	if (tensor_is(v) && ptfile_tensor(pt, v, "fuzz", &t, &storage, NULL) == 0)
		assert(storage <= pt->src.size &&
		       t.storage_numel * dtype_size(t.dtype) <=
			       pt->src.size - storage);
	for (size_t i = 0; pairs && i < pairs->n; i++)
		look_at(pt, pairs->v[i].val, visits);
	for (size_t i = 0; items && i < items->n; i++)
		look_at(pt, items->v[i], visits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct span bytes = { data, size };
	struct errmsg err = { "" };
	struct source src;
	struct ptfile pt;
	unsigned visits = 0;

	source_init_span(&src, "fuzz", bytes);
	if (ptfile_open_source(&pt, &src, &err)) {
		assert(strlen(err.text) > 0);
		return 0;
	}
	look_at(&pt, pt.root, &visits);
	ptfile_close(&pt);
	return 0;
}
