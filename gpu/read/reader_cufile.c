/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads by cuFile (GPUDirect Storage): disks and network cards write to device
 * memory themselves. cuFile's behaviour is known from its header and NVIDIA's
 * documentation; this file was tested with an emulation, not on hardware.
 *
 * cuFile's calls block and may come from any thread.  Device memory is not
 * registered with cuFile: every byte is read once, and there is more of it than
 * can be pinned, so that reads go through cuFile's own pinned buffers on the
 * device.  From there cuFile also copies unaligned ranges.
 */
#include <assert.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/sys/pagecache.h"
#include "gpu/nvidia/cufile_files.h"
#include "gpu/read/reader.h"

/* cuFile's default buffer size (per_buffer_cache_size_kb in cufile.json).  The
 * size from which direct reads pay off has not been measured. */
#define LEAST ((size_t)1 << 20)

/* CU_FILE_POSIX_IO_MODE, missing in older headers: cuFile reads all files
 * through the host. */
#define POSIX_IO_MODE 2

struct cufile {
	struct reader base;
	struct reader *threads;
	int device;
	struct cufile_files files;
};

static struct cufile *reader_cufile_of(struct reader *r)
{
	return (struct cufile *)r;
}

/* --- what is read so --------------------------------------------------------- */

static int takes(struct reader *r, struct read_job *job)
{
	struct cufile_file *file;
	int rc;

	if (job->len < LEAST || job->len % PAGECACHE_ALIGN ||
	    job->off % PAGECACHE_ALIGN)
		return -ENOTSUP;
	rc = cufile_files_find(&reader_cufile_of(r)->files, &job->file, &file,
			       &job->err);
	if (rc)
		return rc;
	job->token = file;
	return pagecache_has(job->file.fd, job->off, job->len) ? -ENOTSUP : 0;
}

/* --- reading ----------------------------------------------------------------- */

/* Report a negative result, or 0: the file has become shorter, which the retry
 * by another reader reports. */
static int report_failure(struct read_job *job, ssize_t got)
{
	const char *const reason = got == 0    ? "nothing more to read"
				   : got == -1 ? strerror(errno)
					       : CUFILE_ERRSTR((int)got);

	return errmsg_set(&job->err, -EIO, "%s: cuFileRead at %llu: %s",
			  job->file.name,
			  (unsigned long long)(job->off + job->done), reason);
}

/* Runs in a worker thread, which selects its device on its first job. */
static void read_piece(void *ctx, struct read_job *job)
{
	const struct cufile *const c = ctx;
	const struct cufile_file *const file = job->token;
	const cudaError_t e = cudaSetDevice(c->device);

	assert(file->open);
	job->done = 0;
	job->rc = 0;
	if (e != cudaSuccess)
		job->rc = errmsg_set(&job->err, -EIO, "%s: cudaSetDevice: %s",
				     job->file.name, cudaGetErrorString(e));
	while (!job->rc && job->done < job->len) {
		const ssize_t got = c->files.api->cuFileRead(
			file->handle, job->buf, job->len - job->done,
			(off_t)(job->off + job->done), (off_t)job->done);

		if (got > 0)
			job->done += (size_t)got;
		else
			job->rc = report_failure(job, got);
	}
}

static void reader_cufile_start(struct reader *r, struct read_job *job)
{
	struct cufile_file *const file = job->token;

	file->busy++;
	reader_cufile_of(r)->threads->ops->start(reader_cufile_of(r)->threads,
						 job);
}

static struct read_job *reader_cufile_take(struct reader *r, bool wait)
{
	struct reader *const threads = reader_cufile_of(r)->threads;
	struct read_job *const job = threads->ops->take(threads, wait);

	if (job) {
		struct cufile_file *const file = job->token;

		file->busy--;
		file->failed |= job->rc != 0;
	}
	return job;
}

/* --- beginning and end ------------------------------------------------------- */

/* The filesystems that GPUDirect Storage supports here, as bits. 0 without the
 * driver, or if cuFile would copy through the host. */
static unsigned reach(const struct cufile_api *api)
{
	CUfileDrvProps_t props = { 0 };

	if (api->cuFileDriverGetProperties(&props).err != CU_FILE_SUCCESS ||
	    props.nvfs.dcontrolflags & 1u << POSIX_IO_MODE)
		return 0;
	return props.nvfs.dstatusflags;
}

static void free_cufile(struct reader *r)
{
	struct cufile *const c = reader_cufile_of(r);

	if (c->threads)
		c->threads->ops->free(c->threads);
	cufile_files_done(&c->files);
	c->files.api->cuFileDriverClose();
	free(c);
}

int reader_cufile_new(struct reader **out, unsigned width, int device,
		      struct errmsg *err)
{
	static const struct reader_ops ops = { .takes = takes,
					       .start = reader_cufile_start,
					       .take = reader_cufile_take,
					       .free = free_cufile };
	const struct cufile_api *const api = cufile_api();
	struct cufile *c;
	int rc;

	if (!api || api->cuFileDriverOpen().err != CU_FILE_SUCCESS)
		return -ENOTSUP;
	c = calloc(1, sizeof(*c));
	if (!c) {
		api->cuFileDriverClose();
		return errmsg_nomem(err, NULL);
	}
	c->base = (struct reader){ .ops = &ops,
				   .name = "cuFile",
				   .align = PAGECACHE_ALIGN,
				   .least = LEAST };
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
