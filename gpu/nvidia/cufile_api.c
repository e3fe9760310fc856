/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cufile_api.h"

#include <unistd.h>

#include "gpu/nvidia/dynlib.h"

#define LIBRARY "libcufile.so.0"

/* The kernel module through which storage reaches a GPU's memory. */
#define DRIVER "/proc/driver/nvidia-fs"

/* Some names are macros for others. */
#define TEXT(x) #x
#define NAME_OF(call) TEXT(call)

const struct cufile_api *cufile_api(void)
{
	static struct cufile_api api;
	const struct dynlib_call calls[] = {
		{ NAME_OF(cuFileDriverOpen), (void **)&api.driver_open },
		{ NAME_OF(cuFileDriverClose), (void **)&api.driver_close },
		{ NAME_OF(cuFileDriverGetProperties),
		  (void **)&api.driver_get_properties },
		{ NAME_OF(cuFileHandleRegister), (void **)&api.handle_register },
		{ NAME_OF(cuFileHandleDeregister),
		  (void **)&api.handle_deregister },
		{ NAME_OF(cuFileRead), (void **)&api.read },
	};
	const char *why;

	/* Without the driver, cuFile would copy through the host, take long to
	 * find that out, and write a log into the working directory. */
	if (access(DRIVER, F_OK) < 0)
		return NULL;
	return dynlib_load(LIBRARY, calls, sizeof(calls) / sizeof(*calls), &why)
		       ? &api
		       : NULL;
}
