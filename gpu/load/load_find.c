/* SPDX-License-Identifier: Apache-2.0 */
/* Selection of the tag.  `latest` and `latest_universal` have DeepSpeed's meaning. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/table/detect.h"
#include "ckpt/table/tags.h"
#include "ckpt/io/io.h"
#include "gpu/load/load_impl.h"

int load_path(char path[PATH_MAX], const char *dir, const char *name, struct errmsg *err)
{
	return snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX
		       ? 0
		       : errmsg_set(err, -ENAMETOOLONG, "%s: name too long", dir);
}

mode_t load_mode(struct uckpt *u, const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct attrs a;

	return load_path(path, dir, name, NULL) || io_stat(u, path, 0, &a, NULL, NULL)
		       ? 0
		       : a.st.st_mode;
}

/* Read the tag that DIR/`pointer` names; "" if there is no such file. */
static int read_pointer(struct uckpt *u, const char *dir, const char *pointer,
			char tag[NAME_MAX + 1], struct errmsg *err)
{
	char path[PATH_MAX];
	struct source src;
	char *name;
	size_t n;
	int rc = load_path(path, dir, pointer, err);

	tag[0] = '\0';
	if (rc)
		return rc;
	rc = io_open(u, path, NULL, &src, err);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	n = src.size < NAME_MAX ? (size_t)src.size : NAME_MAX;
	rc = source_read(&src, tag, n, 0, err);
	source_close(&src);
	if (rc)
		return rc;
	tag[n] = '\0';
	name = tags_strip(tag);
	memmove(tag, name, strlen(name) + 1);
	if (!*tag || strchr(tag, '/') || !S_ISDIR(load_mode(u, dir, tag)))
		rc = errmsg_set(err, -ENOENT, "%s: names '%s', which does not exist", path, tag);
	return rc;
}

/* Without `latest`, take the tag that is newest by name. */
static int load_find_choose(struct uckpt *u, const char *dir, char path[PATH_MAX],
			    struct errmsg *err)
{
	enum tags_choice choice;
	char *tag;
	int rc;

	rc = tags_choose(u, dir, &tag, &choice, err);
	if (rc)
		return rc;
	if (choice == TAGS_NONE || choice == TAGS_WEIGHTS)
		rc = detect_explain(u, tag, err);
	else if (snprintf(path, PATH_MAX, "%s", tag) >= PATH_MAX)
		rc = errmsg_set(err, -ENAMETOOLONG, "%s: name too long", dir);
	free(tag);
	return rc;
}

/* Is the checkpoint of the requested kind? */
static int check_kind(const struct load_options *o, const char *path, struct errmsg *err)
{
	const bool universal = detect_is_universal(o->u, path);

	if (!o->universal && universal)
		return errmsg_set(
			err, -EINVAL,
			"%s: is a universal checkpoint; resume from it with --universal_checkpoint",
			path);
	if (o->universal && !universal)
		return errmsg_set(
			err, -EINVAL,
			"%s: not a universal checkpoint (it has no zero/); mount it with ucfs, or resume without --universal_checkpoint",
			path);
	return 0;
}

int load_find(const struct load_options *o, char path[PATH_MAX], struct errmsg *err)
{
	const char *pointer = o->universal ? "latest_universal" : "latest";
	char tag[NAME_MAX + 1] = "";
	struct attrs a;
	int rc;

	rc = io_stat(o->u, o->dir, 0, &a, NULL, err);
	if (rc == -ENOENT)
		return errmsg_set(err, rc, "%s: no `%s`: %s", o->dir, pointer, strerror(-rc));
	if (rc)
		return rc;
	if (!o->tag)
		rc = read_pointer(o->u, o->dir, pointer, tag, err);
	else if (!S_ISDIR(load_mode(o->u, o->dir, o->tag)))
		rc = errmsg_set(err, -ENOENT, "%s/%s: no such checkpoint", o->dir, o->tag);
	if (rc)
		return rc;
	if (o->tag || *tag)
		rc = load_path(path, o->dir, o->tag ? o->tag : tag, err);
	else if (o->universal ? detect_is_universal(o->u, o->dir)
			      : detect(o->u, o->dir, NULL) > DIR_WEIGHTS)
		rc = load_path(path, o->dir, ".", err);
	else if (!o->universal)
		rc = load_find_choose(o->u, o->dir, path, err);
	else
		rc = errmsg_set(
			err, -ENOENT,
			"%s: no `latest_universal` and no zero/; name a universal checkpoint with --checkpoint_tag",
			o->dir);
	return rc ? rc : check_kind(o, path, err);
}
