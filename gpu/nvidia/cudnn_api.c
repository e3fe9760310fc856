/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cudnn_api.h"

#include "gpu/nvidia/dynlib.h"

#define LIBRARY "libcudnn.so.9"

const struct cudnn_api *cudnn_api(void)
{
	static struct cudnn_api api;
	__typeof__(cudnnGetVersion) *version;
	const struct dynlib_call calls[] = {
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
	const char *why;

	if (!dynlib_load(LIBRARY, calls, sizeof(calls) / sizeof(*calls), &why))
		return NULL;
	api.version = version();
	return &api;
}
