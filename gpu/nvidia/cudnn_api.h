/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDNN_API_H
#define UCTRAIN_CUDNN_API_H

#include <cudnn.h>

/* The calls of cuDNN that we use.  Its libraries take a gigabyte: they are
 * loaded for the first attention that they may compute. */
struct cudnn_api {
	size_t version; /* of the library: 92600 is 9.26.0 */
	__typeof__(cudnnCreate) *create;
	__typeof__(cudnnDestroy) *destroy;
	__typeof__(cudnnSetStream) *set_stream;
	__typeof__(cudnnGetErrorString) *get_error_string;
	__typeof__(cudnnBackendCreateDescriptor) *descriptor_create;
	__typeof__(cudnnBackendDestroyDescriptor) *descriptor_destroy;
	__typeof__(cudnnBackendSetAttribute) *set;
	__typeof__(cudnnBackendGetAttribute) *get;
	__typeof__(cudnnBackendFinalize) *finalize;
	__typeof__(cudnnBackendExecute) *execute;
};

/* NULL if it cannot be loaded. */
const struct cudnn_api *cudnn_api(void);

#endif
