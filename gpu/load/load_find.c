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

/* Read the tag that a file of the run names; NULL if there is no such file. */
static int read_pointer(const struct load_options *o, const char *pointer, char **tag,
			struct errmsg *err)
{
	const int rc = tags_pointer(o->u, o->dir, pointer, tag, err);

	if (rc || !*tag || (names_is_file(*tag) && S_ISDIR(load_mode(o->u, o->dir, *tag))))
		return rc;
	errmsg_set(err, -ENOENT, "%s/%s: names '%s', which does not exist", o->dir, pointer, *tag);
	free(*tag);
	return -ENOENT;
}

/* Choose the newest tag by name if there is no `latest`. */
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

/* Check that the checkpoint is of the requested kind. */
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
	char *named = NULL;
	struct attrs a;
	int rc;

	rc = io_stat(o->u, o->dir, 0, &a, NULL, err);
	if (rc == -ENOENT)
		return errmsg_set(err, rc, "%s: no `%s`: %s", o->dir, pointer, strerror(-rc));
	if (rc)
		return rc;
	if (!o->tag)
		rc = read_pointer(o, pointer, &named, err);
	else if (!S_ISDIR(load_mode(o->u, o->dir, o->tag)))
		rc = errmsg_set(err, -ENOENT, "%s/%s: no such checkpoint", o->dir, o->tag);
	if (rc)
		return rc;
	if (o->tag || named)
		rc = load_path(path, o->dir, o->tag ?: named, err);
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
	free(named);
	return rc ? rc : check_kind(o, path, err);
}
