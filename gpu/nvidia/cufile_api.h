/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUFILE_API_H
#define UCTRAIN_CUFILE_API_H

#include <cufile.h>

#include "ckpt/sys/dynlib.h"

/* The calls of cuFile that we use.  It is loaded to resume, on machines whose
 * kernel has its driver (nvidia-fs), which few have. */
#define CUFILE_CALLS(X)              \
	X(cuFileDriverOpen)          \
	X(cuFileDriverClose)         \
	X(cuFileDriverGetProperties) \
	X(cuFileHandleRegister)      \
	X(cuFileHandleDeregister)    \
	X(cuFileRead)

struct cufile_api {
	CUFILE_CALLS(DYNLIB_MEMBER)
};

/* NULL if there is no driver, or the library cannot be loaded. */
const struct cufile_api *cufile_api(void);

#endif
