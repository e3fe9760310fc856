/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces reader_cufile.c in builds without cuFile. */
#include <errno.h>

#include "gpu/read/reader.h"

int reader_cufile_new(struct reader **out, unsigned width, int device,
		      struct errmsg *err)
{
	(void)out;
	(void)width;
	(void)device;
	(void)err;
	return -ENOTSUP;
}
