/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUFILE_H
#define CUDAEMU_CUFILE_H

/*
 * The part of cuFile that reader_cufile.c and cufile_files.c call, with the
 * names and meanings of NVIDIA's documentation; implemented with pread by
 * cudaemu_cufile.c.
 */
#include <stddef.h>
#include <stdlib.h>
#include <sys/types.h>

typedef enum CUfileOpError {
	CU_FILE_SUCCESS = 0,
	CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
	CU_FILE_IO_NOT_SUPPORTED = 5008,
	CU_FILE_INTERNAL_ERROR = 5030,
} CUfileOpError;

#define CUFILE_ERRSTR(err) cufileop_status_error((CUfileOpError)abs((int)(err)))
const char *cufileop_status_error(CUfileOpError e);

typedef struct {
	CUfileOpError err;
	int cu_err;
} CUfileError_t;

/* Bit numbers in dstatusflags. */
enum {
	CU_FILE_LUSTRE_SUPPORTED = 0,
	CU_FILE_NFS_SUPPORTED = 2,
	CU_FILE_GPFS_SUPPORTED = 3,
	CU_FILE_NVME_SUPPORTED = 4,
	CU_FILE_NVMEOF_SUPPORTED = 5,
	CU_FILE_SCSI_SUPPORTED = 6,
	CU_FILE_SCALEFLUX_CSD_SUPPORTED = 7,
	CU_FILE_NVMESH_SUPPORTED = 8,
	CU_FILE_BEEGFS_SUPPORTED = 9,
};

typedef struct {
	struct {
		unsigned major_version, minor_version;
		size_t poll_thresh_size, max_direct_io_size;
		unsigned dstatusflags, dcontrolflags;
	} nvfs;
	unsigned fflags;
} CUfileDrvProps_t;

enum CUfileFileHandleType { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 };

typedef struct {
	enum CUfileFileHandleType type;
	union {
		int fd;
		void *handle;
	} handle;
	const void *fs_ops;
} CUfileDescr_t;

typedef void *CUfileHandle_t;

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props);
CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr);
void cuFileHandleDeregister(CUfileHandle_t fh);
ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t file_off,
		   off_t base_off);

#endif
