/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads by cuFile (GPUDirect Storage): a disk, or what comes from a network,
 * writes into the device's memory by itself.  What cuFile does is known from its
 * header and from NVIDIA's documents; it was emulated, and has not been run on
 * hardware.
 *
 * Calls of cuFile wait, and may come from any thread.  The device's memory is not
 * registered with it: every byte of that is read once, and there is more of it
 * than can be pinned, so that pieces go through what cuFile has pinned for
 * itself, in the device.  From there it copies also what is not aligned.
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/nvidia/cufile_files.h"
#include "gpu/read/reader.h"

/* Direct reads are of whole blocks of a disk, or pages of the kernel's. */
#define ALIGN ((size_t)4096)

/* As much as cuFile moves at once through its own memory, unless it is told
 * otherwise (per_buffer_cache_size_kb in its cufile.json).  Where it begins to
 * pay has not been measured. */
#define LEAST ((size_t)1 << 20)

/* CU_FILE_POSIX_IO_MODE, which older headers have not: cuFile reads all files
 * through the host. */
#define POSIX_IO_MODE 2

struct cufile {
	struct reader base;
	struct reader *threads;
	int device;
	struct cufile_files files;
};

static struct cufile *of(struct reader *r)
{
	return (struct cufile *)r;
}

/* --- what is read so --------------------------------------------------------- */

/*
 * Does the page cache have half of it, or more?  Then it is copied from there: a
 * direct read would have the disk read all of it again.  To those who
 * neither own a file nor may write to it the kernel says that all is there
 * (Linux 5.2).
 */
static bool is_cached(int fd, uint64_t off, size_t len)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t before = (size_t)(off % page);
	const size_t pages = (before + len + page - 1) / page;
	unsigned char *here = malloc(pages);
	void *p = mmap(NULL, before + len, PROT_READ, MAP_SHARED, fd,
		       (off_t)(off - before));
	bool cached = true;
	size_t n = 0;

	if (here && p != MAP_FAILED && mincore(p, before + len, here) == 0) {
		for (size_t i = 0; i < pages; i++)
			n += here[i] & 1;
		cached = n * 2 >= pages;
	}
	if (p != MAP_FAILED)
		munmap(p, before + len);
	free(here);
	return cached;
}

static int takes(struct reader *r, struct read_job *job)
{
	struct cufile_file *file;
	int rc;

	if (job->len < LEAST || job->len % ALIGN || job->off % ALIGN)
		return -ENOTSUP;
	rc = cufile_files_find(&of(r)->files, &job->file, &file, &job->err);
	if (rc)
		return rc;
	job->token = file;
	return is_cached(job->file.fd, job->off, job->len) ? -ENOTSUP : 0;
}

/* --- reading ----------------------------------------------------------------- */

/* Of a negative result, or of 0: the file has become shorter, which who reads it
 * next will tell. */
static int tell_failure(struct read_job *job, ssize_t got)
{
	const char *const reason = got == 0    ? "nothing more to read"
				   : got == -1 ? strerror(errno)
					       : CUFILE_ERRSTR((int)got);

	return errmsg_set(&job->err, -EIO, "%s: cuFileRead at %llu: %s",
			  job->file.name,
			  (unsigned long long)(job->off + job->done), reason);
}

/* In a thread, which has not chosen a device yet when it comes here first. */
static void read_piece(void *ctx, struct read_job *job)
{
	const struct cufile *const c = ctx;
	const struct cufile_file *const file = job->token;
	const cudaError_t e = cudaSetDevice(c->device);

	job->done = 0;
	job->rc = 0;
	if (e != cudaSuccess)
		job->rc = errmsg_set(&job->err, -EIO, "%s: cudaSetDevice: %s",
				     job->file.name, cudaGetErrorString(e));
	while (!job->rc && job->done < job->len) {
		const ssize_t got = c->files.api->read(
			file->handle, job->buf, job->len - job->done,
			(off_t)(job->off + job->done), (off_t)job->done);

		if (got > 0)
			job->done += (size_t)got;
		else
			job->rc = tell_failure(job, got);
	}
}

static void start(struct reader *r, struct read_job *job)
{
	struct cufile_file *const file = job->token;

	file->busy++;
	of(r)->threads->ops->start(of(r)->threads, job);
}

static struct read_job *take(struct reader *r, bool wait)
{
	struct reader *const threads = of(r)->threads;
	struct read_job *const job = threads->ops->take(threads, wait);

	if (job) {
		struct cufile_file *const file = job->token;

		file->busy--;
		file->failed |= job->rc != 0;
	}
	return job;
}

/* --- beginning and end ------------------------------------------------------- */

/* Which filesystems it reaches, as bits; 0: it would copy through the host, or
 * there is no driver of it. */
static unsigned reach(const struct cufile_api *api)
{
	CUfileDrvProps_t props = { 0 };

	if (api->driver_get_properties(&props).err != CU_FILE_SUCCESS ||
	    props.nvfs.dcontrolflags & 1u << POSIX_IO_MODE)
		return 0;
	return props.nvfs.dstatusflags;
}

static void free_cufile(struct reader *r)
{
	struct cufile *const c = of(r);

	if (c->threads)
		c->threads->ops->free(c->threads);
	cufile_files_done(&c->files);
	c->files.api->driver_close();
	free(c);
}

int reader_cufile_new(struct reader **out, unsigned width, int device,
		      struct errmsg *err)
{
	static const struct reader_ops ops = {
		.takes = takes, .start = start, .take = take, .free = free_cufile
	};
	const struct cufile_api *const api = cufile_api();
	struct cufile *c;
	int rc;

	if (!api || api->driver_open().err != CU_FILE_SUCCESS)
		return -ENOTSUP;
	c = calloc(1, sizeof(*c));
	if (!c) {
		api->driver_close();
		return errmsg_set(err, -ENOMEM, "out of memory");
	}
	c->base = (struct reader){
		.ops = &ops, .name = "cuFile", .align = ALIGN, .least = LEAST
	};
	c->device = device;
	c->files.api = api;
	c->files.supported = reach(api);
	rc = c->files.supported ? reader_threads_calling(&c->threads, width,
							 read_piece, c, err)
				: -ENOTSUP;
	if (rc) {
		free_cufile(&c->base);
		return rc;
	}
	*out = &c->base;
	return 0;
}
