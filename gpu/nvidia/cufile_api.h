/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUFILE_API_H
#define UCTRAIN_CUFILE_API_H

#include <cufile.h>

/* The calls of cuFile that we use.  It is loaded to resume, on machines whose
 * kernel has its driver (nvidia-fs), which few have. */
struct cufile_api {
	__typeof__(cuFileDriverOpen) *driver_open;
	__typeof__(cuFileDriverClose) *driver_close;
	__typeof__(cuFileDriverGetProperties) *driver_get_properties;
	__typeof__(cuFileHandleRegister) *handle_register;
	__typeof__(cuFileHandleDeregister) *handle_deregister;
	__typeof__(cuFileRead) *read;
};

/* NULL if there is no driver, or the library cannot be loaded. */
const struct cufile_api *cufile_api(void);

#endif
