/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuFile needs a descriptor with O_DIRECT: before CUDA 12.2 it accepts no other
 * (NVIDIA's O_DIRECT Requirements Guide for GPUDirect Storage), and others may
 * be read through the page cache.  The descriptors of shards lack it, so that
 * each file is opened again.  As with any direct read, the kernel first writes back
 * dirty pages.
 */
#include "gpu/nvidia/cufile_files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/sys/pagecache.h"

/* Filesystem numbers missing from <linux/magic.h>, as in stat(1). */
#define BEEGFS_MAGIC 0x19830326
#define GPFS_MAGIC 0x47504653
#define LUSTRE_MAGIC 0x0bd00bd0

#define BIT(flag) (1u << (flag))

/* Devices that a local filesystem may be on. */
#define BLOCK_DEVICES                                                         \
	(BIT(CU_FILE_NVME_SUPPORTED) | BIT(CU_FILE_NVMEOF_SUPPORTED) |        \
	 BIT(CU_FILE_SCSI_SUPPORTED) | BIT(CU_FILE_SCALEFLUX_CSD_SUPPORTED) | \
	 BIT(CU_FILE_NVMESH_SUPPORTED))

/*
 * Does GPUDirect Storage support the file's filesystem?  Elsewhere cuFile would
 * copy through host memory, as we do.  The driver does not report which local
 * disks it reaches.
 */
static bool is_supported(const struct cufile_files *f, int fd)
{
	static const struct {
		unsigned long magic;
		unsigned any; /* supported if the driver has any of these */
	} filesystems[] = {
		{ EXT4_SUPER_MAGIC, BLOCK_DEVICES },
		{ XFS_SUPER_MAGIC, BLOCK_DEVICES },
		{ NFS_SUPER_MAGIC, BIT(CU_FILE_NFS_SUPPORTED) },
		{ LUSTRE_MAGIC, BIT(CU_FILE_LUSTRE_SUPPORTED) },
		{ GPFS_MAGIC, BIT(CU_FILE_GPFS_SUPPORTED) },
		{ BEEGFS_MAGIC, BIT(CU_FILE_BEEGFS_SUPPORTED) },
	};
	struct statfs st;

	if (fstatfs(fd, &st) != 0)
		return false;
	for (size_t i = 0; i < sizeof(filesystems) / sizeof(*filesystems); i++)
		if ((unsigned long)st.f_type == filesystems[i].magic)
			return f->supported & filesystems[i].any;
	return false;
}

static int cufile_files_open_file(const struct cufile_files *f,
				  struct cufile_file *file,
				  const struct source *src, struct errmsg *err)
{
	CUfileDescr_t d = { .type = CU_FILE_HANDLE_TYPE_OPAQUE_FD };
	CUfileError_t e;

	if (!is_supported(f, src->fd))
		return -ENOTSUP;
	file->fd = pagecache_bypass(src->fd);
	if (file->fd < 0)
		return -ENOTSUP;
	d.handle.fd = file->fd;
	e = f->api->cuFileHandleRegister(&file->handle, &d);
	file->open = e.err == CU_FILE_SUCCESS;
	if (file->open)
		return 0;
	close(file->fd);
	return errmsg_set(err, -EIO, "%s: cuFileHandleRegister: %s", src->name,
			  CUFILE_ERRSTR(e.err));
}

static void cufile_files_close_file(const struct cufile_files *f,
				    struct cufile_file *file)
{
	if (!file->open)
		return;
	f->api->cuFileHandleDeregister(file->handle);
	close(file->fd);
}

/* Get an unused entry, or evict the oldest idle one.  NULL if all are busy. */
static struct cufile_file *take_place(struct cufile_files *f)
{
	if (f->n < CUFILE_FILES)
		return &f->v[f->n++];
	for (unsigned i = 0; i < CUFILE_FILES; i++) {
		struct cufile_file *file = &f->v[f->oldest];

		f->oldest = (f->oldest + 1) % CUFILE_FILES;
		if (file->busy)
			continue;
		cufile_files_close_file(f, file);
		return file;
	}
	return NULL;
}

int cufile_files_find(struct cufile_files *f, const struct source *src,
		      struct cufile_file **out, struct errmsg *err)
{
	struct cufile_file *file;
	struct stat st;

	assert(f->n <= CUFILE_FILES && src->fd >= 0);
	if (fstat(src->fd, &st) != 0)
		return -ENOTSUP;
	for (unsigned i = 0; i < f->n; i++) {
		*out = file = &f->v[i];
		if (file->dev == st.st_dev && file->ino == st.st_ino)
			return file->open && !file->failed ? 0 : -ENOTSUP;
	}
	*out = file = take_place(f);
	if (!file)
		return -ENOTSUP;
	*file = (struct cufile_file){ .dev = st.st_dev, .ino = st.st_ino };
	return cufile_files_open_file(f, file, src, err);
}

void cufile_files_done(struct cufile_files *f)
{
	for (unsigned i = 0; i < f->n; i++)
		cufile_files_close_file(f, &f->v[i]);
}
