/* SPDX-License-Identifier: Apache-2.0 */
#include "cudaemu_cufile.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cudaemu.h"
#include "gpu/nvidia/cufile_api.h"

struct cudaemu_cufile cudaemu_cufile;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void cudaemu_cufile_begin(void)
{
	cudaemu_cufile = (struct cudaemu_cufile){
		.there = true,
		.reaches = 1u << CU_FILE_NVME_SUPPORTED,
		.fs = EXT4_SUPER_MAGIC,
		.result = 1,
	};
}

/* --- the system -------------------------------------------------------------- */

int __wrap_fstatfs(int fd, struct statfs *st);
int __wrap_mincore(void *p, size_t len, unsigned char *here);

int __wrap_fstatfs(int fd, struct statfs *st)
{
	assert(fcntl(fd, F_GETFD) >= 0);
	*st = (struct statfs){ 0 };
	st->f_type = (__typeof__(st->f_type))cudaemu_cufile.fs;
	return 0;
}

int __wrap_mincore(void *p, size_t len, unsigned char *here)
{
	if (cudaemu_cufile.cache)
		return (int)syscall(SYS_mincore, p, len, here);
	memset(here, 0, (len + 4095) / 4096);
	return 0;
}

/* --- the driver -------------------------------------------------------------- */

const char *cufileop_status_error(CUfileOpError e)
{
	return e == CU_FILE_IO_NOT_SUPPORTED ? "not supported on this file"
					     : "some error of cuFile";
}

static CUfileError_t result(CUfileOpError e)
{
	return (CUfileError_t){ .err = e };
}

static CUfileError_t driver_open(void)
{
	assert(!cudaemu_cufile.drivers);
	cudaemu_cufile.drivers = cudaemu_cufile.opens == CU_FILE_SUCCESS;
	return result(cudaemu_cufile.opens);
}

static CUfileError_t driver_close(void)
{
	assert(cudaemu_cufile.drivers && !cudaemu_cufile.handles);
	cudaemu_cufile.drivers--;
	return result(CU_FILE_SUCCESS);
}

static CUfileError_t get_properties(CUfileDrvProps_t *props)
{
	assert(cudaemu_cufile.drivers);
	*props = (CUfileDrvProps_t){ 0 };
	props->nvfs.dstatusflags = cudaemu_cufile.reaches;
	props->nvfs.dcontrolflags = cudaemu_cufile.control;
	return result(CU_FILE_SUCCESS);
}

/* --- files ------------------------------------------------------------------- */

struct handle {
	int direct, fd; /* the registered descriptor; a duplicate without
			 * O_DIRECT */
};

static CUfileError_t handle_register(CUfileHandle_t *fh, CUfileDescr_t *d)
{
	struct handle *h;
	char path[32];

	assert(cudaemu_cufile.drivers);
	assert(d->type == CU_FILE_HANDLE_TYPE_OPAQUE_FD && !d->fs_ops);
	assert(fcntl(d->handle.fd, F_GETFL) & O_DIRECT);
	cudaemu_cufile.registered++;
	if (cudaemu_cufile.registers != CU_FILE_SUCCESS)
		return result(cudaemu_cufile.registers);
	h = malloc(sizeof(*h));
	assert(h);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", d->handle.fd);
	h->direct = d->handle.fd;
	h->fd = open(path, O_RDONLY | O_CLOEXEC);
	assert(h->fd >= 0);
	cudaemu_cufile.handles++;
	*fh = h;
	return result(CU_FILE_SUCCESS);
}

static void handle_deregister(CUfileHandle_t fh)
{
	struct handle *h = fh;

	assert(cudaemu_cufile.handles--);
	assert(fcntl(h->direct, F_GETFD) >= 0);
	close(h->fd);
	free(h);
}

/* The number of this read, from 0. */
static unsigned count_read(void)
{
	unsigned n;

	pthread_mutex_lock(&lock);
	n = cudaemu_cufile.reads++;
	pthread_mutex_unlock(&lock);
	return n;
}

static ssize_t read_file(CUfileHandle_t fh, void *base, size_t size, off_t off,
			 off_t base_off)
{
	const struct handle *h = fh;
	uint8_t *to = (uint8_t *)base + base_off;
	const size_t most = cudaemu_cufile.most;
	const unsigned n = count_read();

	assert(cudaemu_cufile.drivers && cudaemu_cufile.handles);
	assert(fcntl(h->direct, F_GETFL) & O_DIRECT);
	assert(cudaemu_has_device());
	assert(cudaemu_is_settled(to, size));
	if (n >= cudaemu_cufile.good && cudaemu_cufile.result <= 0) {
		memset(to, 0xee, size); /* partially written */
		errno = EIO;
		return cudaemu_cufile.result;
	}
	return pread(h->fd, to, most && most < size ? most : size, off);
}

const struct cufile_api *cufile_api(void)
{
	static const struct cufile_api api = {
		.cuFileDriverOpen = driver_open,
		.cuFileDriverClose = driver_close,
		.cuFileDriverGetProperties = get_properties,
		.cuFileHandleRegister = handle_register,
		.cuFileHandleDeregister = handle_deregister,
		.cuFileRead = read_file,
	};
	const char *how = getenv("CUFILE_EMULATED");

	if (how) {
		cudaemu_cufile_begin();
		if (strcmp(how, "short") == 0)
			cudaemu_cufile.most = 300001;
		if (strcmp(how, "fails") == 0) {
			cudaemu_cufile.good = 1;
			cudaemu_cufile.result = -CU_FILE_INTERNAL_ERROR;
		}
	}
	return cudaemu_cufile.there ? &api : NULL;
}
