/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUFILE_API_H
#define UCTRAIN_CUFILE_API_H

#include <cufile.h>

/* What we call of cuFile, which is loaded when a checkpoint is, where the kernel
 * has its driver (nvidia-fs): few machines do. */
struct cufile_api {
	__typeof__(cuFileDriverOpen) *driver_open;
	__typeof__(cuFileDriverClose) *driver_close;
	__typeof__(cuFileDriverGetProperties) *driver_get_properties;
	__typeof__(cuFileHandleRegister) *handle_register;
	__typeof__(cuFileHandleDeregister) *handle_deregister;
	__typeof__(cuFileRead) *read;
};

/* NULL if there is no driver, or it cannot be loaded. */
const struct cufile_api *cufile_api(void);

#endif
