/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cufile_api.h"

#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

#define LIBRARY "libcufile.so.0"

/* Of the kernel module that lets storage reach a GPU's memory. */
#define DRIVER "/proc/driver/nvidia-fs"

/* Some names are macros for others. */
#define TEXT(x) #x
#define NAME_OF(call) TEXT(call)

const struct cufile_api *cufile_api(void)
{
	static struct cufile_api api;
	const struct {
		const char *name;
		void **at;
	} calls[] = {
		{ NAME_OF(cuFileDriverOpen), (void **)&api.driver_open },
		{ NAME_OF(cuFileDriverClose), (void **)&api.driver_close },
		{ NAME_OF(cuFileDriverGetProperties),
		  (void **)&api.driver_get_properties },
		{ NAME_OF(cuFileHandleRegister), (void **)&api.handle_register },
		{ NAME_OF(cuFileHandleDeregister),
		  (void **)&api.handle_deregister },
		{ NAME_OF(cuFileRead), (void **)&api.read },
	};
	void *library = NULL;

	/* Without it the library copies through the host; and it takes its
	 * time to find that out, and writes a log into the working directory. */
	if (access(DRIVER, F_OK) == 0)
		library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; library && i < sizeof(calls) / sizeof(*calls); i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		if (!*calls[i].at)
			return NULL;
	}
	return library ? &api : NULL;
}
