/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cufile_api.h"

#include <unistd.h>

#define LIBRARY "libcufile.so.0"

/* The kernel module through which storage reaches a GPU's memory. */
#define DRIVER "/proc/driver/nvidia-fs"

const struct cufile_api *cufile_api(void)
{
	static struct cufile_api api;
	const struct dynlib_call calls[] = { CUFILE_CALLS(DYNLIB_CALL) };
	const char *why;

	/* Without the driver, cuFile would copy through the host, take long to
	 * find that out, and write a log into the working directory. */
	if (access(DRIVER, F_OK) < 0)
		return NULL;
	return dynlib_load(LIBRARY, CUDA_DIRS, calls, sizeof(calls) / sizeof(*calls), &why)
		       ? &api
		       : NULL;
}
