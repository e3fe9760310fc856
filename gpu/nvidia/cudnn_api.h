/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDNN_API_H
#define UCTRAIN_CUDNN_API_H

#include <cudnn.h>

#include "ckpt/sys/dynlib.h"

/* The calls of cuDNN that we use.  Its libraries take a gigabyte: they are
 * loaded for the first attention that they may compute. */
#define CUDNN_CALLS(X)                   \
	X(cudnnCreate)                   \
	X(cudnnDestroy)                  \
	X(cudnnSetStream)                \
	X(cudnnGetErrorString)           \
	X(cudnnBackendCreateDescriptor)  \
	X(cudnnBackendDestroyDescriptor) \
	X(cudnnBackendSetAttribute)      \
	X(cudnnBackendGetAttribute)      \
	X(cudnnBackendFinalize)          \
	X(cudnnBackendExecute)

struct cudnn_api {
	size_t version; /* of the library: 92600 is 9.26.0 */
	CUDNN_CALLS(DYNLIB_MEMBER)
};

/* NULL if it cannot be loaded. */
const struct cudnn_api *cudnn_api(void);

#endif
