/* SPDX-License-Identifier: Apache-2.0 */
/* Open files, and reading them. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/commands/api.h"
#include "ckpt/io/shards.h"

/* Refuse other types: a descriptor of the run may refer to anything. */
static int check_type(const struct uckpt_file *f)
{
	struct stat st;

	if (f->f.fd < 0)
		return 0;
	if (fstat(f->f.fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
}

int uckpt_file_open(struct uckpt *u, uint64_t node, struct uckpt_file **out,
		    struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct uckpt_file *f;
	int rc;

	if (!api_is_open(u) || !out)
		return api_refuse(err);
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->u = u;
	f->node = node;
	rc = tree_file_open(u->tree, node, &f->f, err);
	if (!rc && (rc = check_type(f)))
		tree_file_close(&f->f);
	if (rc)
		free(f);
	else
		*out = f;
	return rc;
}

void uckpt_file_close(struct uckpt_file *f)
{
	if (!f || !api_is_open(f->u))
		return;
	tree_file_close(&f->f);
	free(f);
}

uint64_t uckpt_file_size(const struct uckpt_file *f)
{
	struct stat st;

	if (!f)
		return 0;
	if (f->f.v)
		return vfile_size(f->f.v);
	return fstat(f->f.fd, &st) < 0 ? 0 : (uint64_t)st.st_size;
}

bool uckpt_file_is_immutable(const struct uckpt_file *f)
{
	return f && f->f.slot;
}

void uckpt_file_readers(const struct uckpt_file *f, struct uckpt_readers *out)
{
	if (f && out)
		*out = (struct uckpt_readers){ f->f.readable_by.uid, f->f.readable_by.gid,
					       f->f.readable_by.mode };
}

/* The first window of a sequential reader; each next one is larger by this factor, up to
 * vfile_readahead_bytes. */
#define WINDOW_FIRST (UINT64_C(4) << 20)
#define WINDOW_GROWTH 4

void api_read_ahead(struct uckpt_file *f, size_t size, uint64_t off)
{
	const uint64_t most = vfile_readahead_bytes(f->f.v);
	uint64_t window = atomic_load(&f->window);

	if (off != atomic_exchange(&f->goes_on, off + size)) {
		atomic_store(&f->ahead.at, off);
		window = size;
	} else {
		window = window < WINDOW_FIRST ? WINDOW_FIRST : window * WINDOW_GROWTH;
	}
	window = window < most ? window : most;
	atomic_store(&f->window, window);
	vfile_read_ahead(f->f.v, &f->ahead, off, size, window);
}

/* Read from a file of the run, up to its end. */
static int64_t read_local(int fd, char *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		const ssize_t n = pread(fd, buf + done, len - done, (off_t)(off + done));

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			break;
		done += n > 0 ? (size_t)n : 0;
	}
	return (int64_t)done;
}

int64_t uckpt_file_read(struct uckpt_file *f, void *buf, size_t len, uint64_t offset,
			struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);

	if (!f || !api_is_open(f->u) || (!buf && len))
		return api_refuse(err);
	if (len > INT64_MAX || offset > INT64_MAX)
		return -EINVAL;
	if (len > INT64_MAX - offset)
		len = INT64_MAX - offset; /* no file is longer */
	if (!f->f.v)
		return read_local(f->f.fd, buf, len, offset);
	api_read_ahead(f, len, offset);
	return vfile_read(f->f.v, buf, len, offset, err);
}

int uckpt_file_descriptor(struct uckpt_file *f, int *fd, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct shards *shards;
	struct shard_map m;
	int64_t shard;
	int rc;

	if (!f || !api_is_open(f->u) || !fd)
		return api_refuse(err);
	shard = f->f.slot ? vfile_copied_shard(f->f.v) : -1;
	if (shard < 0)
		return -ENOTSUP;
	shards = vfile_shards(f->f.v);
	rc = shards_use(shards, (uint32_t)shard, &m, err);
	if (rc)
		return rc;
	/* Passthrough of a remote shard would make the kernel wait for each window. */
	*fd = m.fd >= 0 && shards_can_map(shards, 0) ? fcntl(m.fd, F_DUPFD_CLOEXEC, 0) : -1;
	shards_unuse(shards, (uint32_t)shard);
	return 0;
}
