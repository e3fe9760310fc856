/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/mpi_api.h"

#include <dlfcn.h>
#include <stddef.h>

#include "ckpt/base/array.h"

/* Of Open MPI 4 and 5. */
#define LIBRARY "libmpi.so.40"

#define OBJECT(member, type, variable) { DYNLIB_TEXT(variable), (void **)&api.member },

/* Global, since Open MPI's plugins need its symbols; and what the program has of its own, such as
 * a test, comes first. */
const struct mpi_api *mpi_api(const char **why)
{
	static struct mpi_api api;
	const struct dynlib_call all[] = { MPI_CALLS(DYNLIB_CALL) MPI_OBJECTS(OBJECT) };
	bool found = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL) != NULL;

	for (size_t i = 0; found && i < COUNT(all); i++)
		found = (*all[i].at = dlsym(RTLD_DEFAULT, all[i].name)) != NULL;
	*why = found ? NULL : dlerror();
	return found ? &api : NULL;
}
