/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/dynlib.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Load `name` from the first of the colon-separated `dirs` that has it. */
static void *open_below(const char *dirs, const char *name)
{
	while (*dirs) {
		const size_t n = strcspn(dirs, ":");
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%.*s/%s", (int)n, dirs, name);
		if (access(path, F_OK) == 0)
			return dlopen(path, RTLD_NOW | RTLD_LOCAL);
		dirs += n + (dirs[n] == ':');
	}
	return NULL;
}

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		library = open_below(CUDA_DIRS, name);
	return library;
}

bool dynlib_load(const char *name, const struct dynlib_call calls[], size_t n,
		 const char **why)
{
	void *const library = open_library(name);
	bool found = library != NULL;

	for (size_t i = 0; found && i < n; i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		found = *calls[i].at != NULL;
	}
	*why = found ? NULL : dlerror();
	return found;
}
