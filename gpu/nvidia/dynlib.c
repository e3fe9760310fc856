/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/dynlib.h"

#include <dlfcn.h>

bool library_load(const char *name, const struct library_call calls[], size_t n,
		  const char **why)
{
	void *const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	bool found = library != NULL;

	for (size_t i = 0; found && i < n; i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		found = *calls[i].at != NULL;
	}
	*why = found ? NULL : dlerror();
	return found;
}
