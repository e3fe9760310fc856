/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors file of arbitrary bytes: tensors lie within it, adjacent, each as
 * long as its shape says, with unique names.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct safetensors *s, uint64_t size)
{
	uint64_t at = s->n ? s->v[0].storage : size;

	for (size_t i = 0; i < s->n; i++) {
		const struct stored *const t = &s->v[i];
		uint64_t numel = 1;

		assert(t->storage == at);
		for (unsigned d = 0; d < t->ndim; d++)
			numel *= t->shape[d];
		assert(t->numel == numel);
		at += numel * dtype_size(t->dtype);
		for (size_t k = 0; k < i; k++)
			assert(strcmp(t->name, s->v[k].name) != 0);
	}
	assert(at == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct errmsg err = { "" };
	struct safetensors s;
	struct source src;

	source_init_span(&src, "fuzz", (struct span){ data, size });
	if (safetensors_read(&s, &src, &err)) {
		assert(*err.text);
		return 0;
	}
	/* Without tensors the file is the header alone, with any padding. */
	check(&s, s.n ? size : 0);
	safetensors_done(&s);
	return 0;
}
