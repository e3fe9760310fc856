/* SPDX-License-Identifier: Apache-2.0 */
/* Time writing the .metadata of 20000 parameters with two optimizer states and 64 chunks each.
 * Prints milliseconds and bytes. */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/views/view_dcp_metadata.h"
#include "ckpt/views/view_dcp_metadata.h"

#define TENSORS 60000
#define CHUNKS 64

int main(void)
{
	/* A row is a chunk. */
	static const uint64_t shape[] = { CHUNKS,
					  VIEW_DCP_CHUNK_MAX / sizeof(float) };
	static struct view_dcp_entry v[TENSORS];
	static char names[TENSORS][48];
	struct bytebuf out = { 0 };
	struct errmsg err = { "" };
	uint64_t start;

	for (size_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]),
			 "optim.state.layers.%zu.weight", i);
		v[i] = (struct view_dcp_entry){ .key = names[i],
					   .path = { { .text = names[i] } },
					   .nsteps = 1,
					   .file = names[i],
					   .is_tensor = true,
					   .dtype = DTYPE_F32,
					   .ndim = 2,
					   .shape = shape };
	}
	start = clock_ns();
	if (view_dcp_metadata_write(v, TENSORS, CHUNKS, &out, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	printf("%.0f %zu\n", (double)(clock_ns() - start) / 1e6, out.len);
	bytebuf_done(&out);
	return 0;
}
