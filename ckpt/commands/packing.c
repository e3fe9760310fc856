/* SPDX-License-Identifier: Apache-2.0 */
/* uckpt_pack and uckpt_unpack. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "ckpt/base/context.h"
#include "ckpt/base/output.h"
#include "ckpt/base/parallel.h"
#include "ckpt/commands/api.h"
#include "ckpt/commands/pack_inputs.h"
#include "ckpt/commands/settings.h"
#include "ckpt/io/io.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/pack_write.h"

struct packing {
	struct uckpt *u;
	struct progress progress;
	struct uckpt_done done;
};

static struct pack_work work_of(struct packing *p, const char *pack)
{
	const unsigned threads = p->u->settings ? p->u->settings->write_threads : 0;

	return (struct pack_work){
		.name = pack,
		.width = threads ?: parallel_width(),
		.progress = &p->progress,
	};
}

/* A pack may claim files of any size. */
static int check_room(const struct packing *p, const char *pack,
		      const struct output *dir, struct errmsg *err)
{
	struct statvfs fs;
	uint64_t room;

	if (fstatvfs(dir->fd, &fs) < 0)
		return errmsg_errno(err, dir->final, "cannot stat");
	room = (uint64_t)fs.f_bavail * fs.f_frsize;
	return p->done.bytes <= room
		       ? 0
		       : errmsg_set(err, -ENOSPC,
				    "%s: has %" PRIu64
				    " bytes to unpack; there is room for %" PRIu64 " at %s",
				    pack, p->done.bytes, room, dir->final);
}

static void count_files(struct uckpt_done *done, const struct pack *pack)
{
	const struct pack_index *x = pack_index_of(pack);

	*done = (struct uckpt_done){ .packed = pack_id(pack)->size };
	for (uint32_t i = 0; i < x->nentries; i++) {
		done->files += S_ISREG(x->entries[i].mode);
		done->bytes += x->entries[i].size;
	}
}

/* Decode a whole pack and verify its hashes; unless `to` is NULL, write the files to the new
 * directory `to`. */
static int extract(struct packing *p, const char *path, const char *to,
		   struct errmsg *err)
{
	const struct pack_work w = work_of(p, path);
	struct output dir;
	struct pack *pack;
	int rc = io_open_pack(p->u, path, &pack, err);

	if (rc)
		return rc;
	count_files(&p->done, pack);
	if (!p->progress.total)
		p->progress.total = p->done.bytes;
	rc = progress_add(&p->progress, 0);
	if (!rc && !to) {
		rc = pack_extract(pack, -1, &w, err);
	} else if (!rc && !(rc = output_open(&dir, to, OUTPUT_DIR, err))) {
		rc = check_room(p, path, &dir, err)
			     ?: pack_extract(pack, dir.fd, &w, err)
			     ?: output_commit(&dir, NULL, err);
		output_close(&dir);
	}
	pack_close(pack);
	return rc;
}

/* Get the umask.  umask() would change it for all threads for a moment. */
static mode_t current_umask(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[256];
	unsigned mask = 077;

	while (status && fgets(line, sizeof(line), status) &&
	       sscanf(line, "Umask: %o", &mask) != 1)
		continue;
	if (status)
		fclose(status);
	return mask;
}

/* Give a pack its mode.  A default ACL of its directory would grant more than the mode, so
 * remove it together with the group's bits. */
static int set_mode(const struct output *out, const struct pack_inputs *x,
		    struct errmsg *err)
{
	struct stat st;
	mode_t mode;

	if (fstat(out->fd, &st) < 0)
		return errmsg_errno(err, out->final, "cannot stat");
	mode = pack_inputs_mode(x, st.st_gid) & ~current_umask();
	if (fgetxattr(out->fd, "system.posix_acl_access", NULL, 0) > 0)
		mode &= ~(mode_t)0077;
	return fchmod(out->fd, mode) < 0
		       ? errmsg_errno(err, out->final, "cannot set the mode")
		       : 0;
}

/* Write a pack, and verify it by reading it like any reader; its hashes were computed from the
 * files' bytes. */
static int write_pack(struct packing *p, const struct pack_inputs *x,
		      struct output *out, struct errmsg *err)
{
	const struct pack_work w = work_of(p, out->path);

	for (size_t i = 0; i < x->n; i++)
		p->progress.total +=
			S_ISREG(x->v[i].mode) ? 2 * x->v[i].id.size : 0;
	return pack_write(out->fd, x->v, x->n, &w, err)
		       ?: set_mode(out, x, err)
		       ?: extract(p, out->tmp, NULL, err)
		       ?: output_commit(out, NULL, err);
}

static int pack(struct packing *p, const char *dir, const char *dest,
		struct errmsg *err)
{
	struct pack_inputs x;
	struct output out;
	int rc = progress_add(&p->progress, 0)
			 ?: output_open(&out, dest, OUTPUT_FILE, err);

	if (rc)
		return rc;
	progress_step(p->u, "looking for copies", 0, 0);
	rc = pack_inputs_list(p->u, &x, dir, PACK_INPUTS_LEAST, err);
	if (!rc) {
		rc = pack_derive(&x, err) ?: write_pack(p, &x, &out, err);
		pack_inputs_done(&x);
	}
	output_close(&out);
	return rc;
}

int uckpt_pack(struct uckpt *u, const char *dir, const char *dest,
	       struct uckpt_done *done, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct packing p = { .u = u, .progress.u = u };
	const int rc = u && dir && dest ? pack(&p, dir, dest, err)
					: api_refuse(err);

	if (!rc && done)
		*done = p.done;
	return rc;
}

int uckpt_unpack(struct uckpt *u, const char *pack, const char *dest,
		 struct uckpt_done *done, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct packing p = { .u = u, .progress.u = u };
	const int rc = u && pack ? extract(&p, pack, dest, err)
				 : api_refuse(err);

	if (!rc && done)
		*done = p.done;
	return rc;
}
