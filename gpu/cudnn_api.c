/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cudnn_api.h"

#include <dlfcn.h>
#include <stddef.h>

#define LIBRARY "libcudnn.so.9"

const struct cudnn_api *cudnn_api(void)
{
	static struct cudnn_api api;
	__typeof__(cudnnGetVersion) *version;
	const struct {
		const char *name;
		void **at;
	} calls[] = {
		{ "cudnnGetVersion", (void **)&version },
		{ "cudnnCreate", (void **)&api.create },
		{ "cudnnDestroy", (void **)&api.destroy },
		{ "cudnnSetStream", (void **)&api.set_stream },
		{ "cudnnGetErrorString", (void **)&api.get_error_string },
		{ "cudnnBackendCreateDescriptor",
		  (void **)&api.descriptor_create },
		{ "cudnnBackendDestroyDescriptor",
		  (void **)&api.descriptor_destroy },
		{ "cudnnBackendSetAttribute", (void **)&api.set },
		{ "cudnnBackendGetAttribute", (void **)&api.get },
		{ "cudnnBackendFinalize", (void **)&api.finalize },
		{ "cudnnBackendExecute", (void **)&api.execute },
	};
	void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	for (size_t i = 0; library && i < sizeof(calls) / sizeof(*calls); i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		if (!*calls[i].at)
			return NULL;
	}
	if (!library)
		return NULL;
	api.version = version();
	return &api;
}
