/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/sys/dynlib.h"

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

bool dynlib_load(const char *name, const char *dirs,
		 const struct dynlib_call calls[], size_t n, const char **why)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	bool found;

	if (!library)
		library = open_below(dirs, name);
	found = library != NULL;
	for (size_t i = 0; found && i < n; i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		found = *calls[i].at != NULL;
	}
	*why = found ? NULL : dlerror();
	return found;
}
