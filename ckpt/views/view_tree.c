/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of a view: nodes, names, attributes and files, from the groups of entries
 * that a view has set.  A node is the number of its group and the entry's number in
 * it.
 *
 * A file's size follows from its pickle.  So a file is laid out when its size is first
 * asked for; the size and the checksums of its storages are then kept in a record.
 */
#include "ckpt/views/view.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/io/shards.h"
#include "ckpt/views/view_impl.h"

#define GROUP_SHIFT 36

_Static_assert(VIEW_ZERO == (uint64_t)ENTRY_GROUP_FIRST << GROUP_SHIFT,
	       "zero/ is the first group of trees that have it");
_Static_assert((uint64_t)ENTRY_GROUPS_MAX << GROUP_SHIFT <= VIEW_NODE_END, "all groups must fit");

struct entry_record {
	uint64_t size; /* 0: not laid out yet; the following fields are not valid */
	size_t nstorages;
	union {
		vfile_crc sum;   /* checksum of the only storage */
		vfile_crc *sums; /* used if there are several storages */
	};
};

void view_set_groups(struct view *v, const struct entry_group *groups, size_t n)
{
	assert(n < ENTRY_GROUPS_MAX);
	v->groups[ENTRY_GROUP_ROOT] = (struct entry_group){ .is_dir = true, .n = 1, .dirs = 1 };
	v->ngroups = ENTRY_GROUP_FIRST;
	for (size_t i = 0; i < n; i++) {
		const struct entry_group *dir = &v->groups[groups[i].dir];
		struct entry_group *g = &v->groups[v->ngroups++];

		assert(dir < g && dir->is_dir);
		*g = groups[i];
		g->dirs = dir->dirs * dir->n;
	}
}

static struct entry get_item(struct view *v, unsigned group, size_t i, struct errmsg *err)
{
	const struct entry_group *g = &v->groups[group];

	return (struct entry){
		.view = v, .group = group, .i = i, .dir = i / g->n, .k = i % g->n, .err = err
	};
}

/* Find the entry of a node.  False if there is no such node. */
static bool parse_node(struct view *v, uint64_t node, struct entry *out, struct errmsg *err)
{
	const uint64_t group = node >> GROUP_SHIFT;
	const uint64_t i = node & ((UINT64_C(1) << GROUP_SHIFT) - 1);

	if (group >= v->ngroups || i >= v->groups[group].dirs * v->groups[group].n)
		return false;
	*out = get_item(v, (unsigned)group, (size_t)i, err);
	return true;
}

static struct entry_group *group_of(const struct entry *e)
{
	return &e->view->groups[e->group];
}

static uint64_t node_of(uint64_t group, size_t i)
{
	return group << GROUP_SHIFT | i;
}

bool view_is_dir(const struct view *v, uint64_t node)
{
	const uint64_t k = node >> GROUP_SHIFT;

	return k < v->ngroups && v->groups[k].is_dir &&
	       node - node_of(k, 0) < v->groups[k].dirs * v->groups[k].n;
}

uint64_t view_parent(const struct view *v, uint64_t dir)
{
	const uint64_t i = dir - node_of(dir >> GROUP_SHIFT, 0);
	const struct entry_group *g = &v->groups[dir >> GROUP_SHIFT];

	assert(view_is_dir(v, dir));
	if (g->paths && i < g->n && view_paths_parent(g->paths, (size_t)i) != VIEW_PATH_TOP)
		return node_of(dir >> GROUP_SHIFT, view_paths_parent(g->paths, (size_t)i));
	return node_of(g->dir, (size_t)i / g->n);
}

int view_set_name(char out[NAME_MAX + 1], const char *name, const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	if (n + s > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(out, name, n);
	memcpy(out + n, suffix, s + 1);
	return 1;
}

/* Get the name of an entry: 1, or 0 if there is no such entry. */
static int get_name(const struct entry *e, char out[NAME_MAX + 1])
{
	const struct entry_group *g = group_of(e);
	const int rc = g->paths ? view_paths_check(g->paths, e->err) : 0;

	if (rc)
		return rc;
	if (g->paths)
		return view_set_name(out, view_paths_name(g->paths, e->i), "");
	if (g->names || g->files)
		return view_set_name(out, g->names ? g->names[e->k] : g->files[e->k].name, "");
	return g->name(e, out);
}

/* May a directory have entries of group k? */
static bool may_have(const struct entry *dir, unsigned k)
{
	const struct entry_group *g = &dir->view->groups[k];

	return g->dir == dir->group || (k == dir->group && g->paths && g->paths->dirs);
}

/* Is this the directory of an entry, in a group whose entries may lie in each other? */
static bool is_in(const struct entry *e, const struct entry *dir)
{
	const struct view_paths *paths = group_of(e)->paths;

	return !paths ||
	       view_paths_parent(paths, e->i) == (dir->group == e->group ? dir->i : VIEW_PATH_TOP);
}

/* Find a directory: 0 or -ENOTDIR. */
static int get_dir(struct view *v, uint64_t node, struct entry *out, struct errmsg *err)
{
	return parse_node(v, node, out, err) && group_of(out)->is_dir
		       ? 0
		       : errmsg_set(err, -ENOTDIR, "not a directory");
}

int view_next(struct view *v, uint64_t dir, uint64_t *pos, struct view_entry *out,
	      struct errmsg *err)
{
	struct entry in = { 0 };
	uint64_t at = *pos;
	int rc = get_dir(v, dir, &in, err);

	for (unsigned k = ENTRY_GROUP_FIRST; !rc && k < v->ngroups; k++) {
		const struct entry_group *g = &v->groups[k];
		const size_t first = k == in.group ? 0 : in.i * g->n;

		if (!may_have(&in, k))
			continue;
		for (; !rc && at < g->n; at++) {
			const struct entry e = get_item(v, k, first + (size_t)at, err);

			++*pos;
			out->node = node_of(k, e.i);
			rc = is_in(&e, &in) ? get_name(&e, out->name) : 0;
		}
		at -= g->n;
	}
	return rc;
}

/* Find an entry of group k in a directory.  -ENOENT, without a message, if there is
 * none. */
static int find_in_group(const struct entry *dir, unsigned k, const char *name, uint64_t *node)
{
	struct view *v = dir->view;
	const struct entry_group *g = &v->groups[k];
	const size_t first = dir->i * g->n;
	char own[NAME_MAX + 1];

	if (g->paths) {
		const int64_t found =
			view_paths_find(g->paths, k == dir->group ? dir->i : VIEW_PATH_TOP, name);
		const int rc = view_paths_check(g->paths, dir->err);

		*node = node_of(k, (size_t)found);
		return rc ?: found < 0 ? -ENOENT : 0;
	}
	if (g->find) {
		const int64_t found = g->find(dir, k, name);

		*node = node_of(k, first + (size_t)found);
		return found < 0 ? -ENOENT : 0;
	}
	for (size_t i = first; i < first + g->n; i++) {
		const struct entry e = get_item(v, k, i, dir->err);
		const int rc = get_name(&e, own);

		*node = node_of(k, i);
		if (rc < 0 || (rc && strcmp(own, name) == 0))
			return rc < 0 ? rc : 0;
	}
	return -ENOENT;
}

int view_lookup(struct view *v, uint64_t dir, const char *name, uint64_t *node, struct errmsg *err)
{
	struct entry in = { 0 };
	int rc = get_dir(v, dir, &in, err);

	if (rc)
		return rc;
	rc = -ENOENT;
	for (unsigned k = ENTRY_GROUP_FIRST; k < v->ngroups && rc == -ENOENT; k++)
		if (may_have(&in, k))
			rc = find_in_group(&in, k, name, node);
	return rc;
}

/* Return the record of a file, or NULL if memory is short.  The caller holds the lock. */
static struct entry_record *get_record(const struct entry *e)
{
	struct entry_group *g = group_of(e);
	struct entry_record **all;

	if (!g->records)
		g->records = calloc(g->n, sizeof(*g->records));
	if (!g->records)
		return NULL;
	/* Records exist for the k-th files of all directories, or for none. */
	all = &g->records[e->k];
	if (!*all)
		*all = calloc(g->dirs, sizeof(**all));
	return *all ? *all + e->dir : NULL;
}

void view_forget_files(struct view *view)
{
	for (struct entry_group *g = view->groups; g < view->groups + view->ngroups; g++) {
		for (size_t k = 0; g->records && k < g->n; k++) {
			struct entry_record *v = g->records[k];

			for (size_t d = 0; v && d < g->dirs; d++)
				if (v[d].nstorages > 1)
					free(v[d].sums);
			free(v);
		}
		free(g->records);
	}
}

/* Record the results of a layout.  The caller holds the lock. */
static int record_file(struct entry_record *r, const struct file_layout *d, const char *stem)
{
	const size_t n = d->nstorages;

	if (!r)
		return errmsg_nomem(d->err, stem);
	if (r->size)
		return r->size == d->size && r->nstorages == n
			       ? 0
			       : errmsg_set(d->err, -EIO, "%s: has changed", stem);
	if (n > 1) {
		r->sums = calloc(n, sizeof(*r->sums));
		if (!r->sums)
			return errmsg_nomem(d->err, stem);
	}
	r->nstorages = n;
	r->size = d->size;
	return 0;
}

/* Lay out a file.  Call layout_done after success. */
static int lay_out(const struct entry *e, bool extents, struct file_layout *d,
		   struct entry_record **record)
{
	char stem[NAME_MAX + 1];
	int rc = get_name(e, stem);

	if (rc < 0)
		return rc;
	if (rc == 0)
		return errmsg_set(e->err, -ENOENT, "no such file");
	*strrchr(stem, '.') = '\0';
	*d = (struct file_layout){ .extents = extents, .err = e->err };
	rc = layout_finish(d, group_of(e)->lay_out(e, d), stem);
	if (!rc) {
		pthread_mutex_lock(&e->view->c->u->lock);
		*record = get_record(e);
		rc = record_file(*record, d, stem);
		pthread_mutex_unlock(&e->view->c->u->lock);
	}
	if (rc)
		layout_done(d);
	return rc;
}

static int get_size(const struct entry *e, uint64_t *size)
{
	struct entry_record *r;
	struct file_layout d;
	int rc;

	pthread_mutex_lock(&e->view->c->u->lock);
	r = get_record(e);
	*size = r ? r->size : 0;
	pthread_mutex_unlock(&e->view->c->u->lock);
	if (*size)
		return 0;
	rc = lay_out(e, false, &d, &r);
	if (rc)
		return rc;
	*size = d.size;
	layout_done(&d);
	return 0;
}

int view_file_size(struct view *v, unsigned group, size_t i, uint64_t *size, struct errmsg *err)
{
	const struct entry e = get_item(v, group, i, err);

	return get_size(&e, size);
}

struct entry_attrs view_copy_of(const struct ckpt_file *f, const struct ckpt_file *files,
			       struct shards *shards)
{
	return (struct entry_attrs){ .mtime_s = f->mtime_s,
				    .readable_by = &f->readable_by,
				    .copied = shards,
				    .shard = (uint32_t)(f - files) };
}

static struct entry_attrs get_facts(const struct entry *e)
{
	const struct entry_group *g = group_of(e);
	const struct checkpoint *c = e->view->c;
	struct entry_attrs facts = {
		.mtime_s = c->mtime_s,
		.readable_by = g->is_dir ? &e->view->names : g->readable_by,
	};

	if (g->files)
		facts = view_copy_of(&g->files[e->k], g->shards ? g->files : c->files,
				     g->shards ?: c->shards);
	if (g->lay_out)
		facts.copied = NULL;
	if (g->attrs)
		g->attrs(e, &facts);
	return facts;
}

static struct entry get_dir_of(const struct entry *e, struct errmsg *err)
{
	const struct entry_group *g = group_of(e);
	const size_t in = g->paths ? view_paths_parent(g->paths, e->i) : VIEW_PATH_TOP;

	return in == VIEW_PATH_TOP ? get_item(e->view, g->dir, e->dir, err)
				   : get_item(e->view, e->group, in, err);
}

/* Write the path of an entry, from the name of its view on, cut to fit. */
static void write_path(const struct entry *e, char *out, size_t size)
{
	char name[NAME_MAX + 1] = "", suffix[VIEW_SUFFIX_MAX];
	struct entry dir;
	struct errmsg ignored;
	size_t n;

	if (e->group == ENTRY_GROUP_ROOT) {
		view_type_suffix(&e->view->options.type, suffix);
		snprintf(out, size, "%s%s", e->view->c->tag, suffix);
		return;
	}
	dir = get_dir_of(e, &ignored);
	write_path(&dir, out, size);
	get_name(e, name);
	n = strlen(out);
	snprintf(out + n, size - n, "/%s", name);
}

static int open_laid_out(const struct entry *e, struct vfile **out)
{
	const struct view *v = e->view;
	char path[3 * NAME_MAX];
	struct entry_record *r;
	struct file_layout d;
	const int rc = lay_out(e, true, &d, &r);

	if (rc)
		return rc;
	if (d.head.len)
		*out = vfile_new_tensors(d.nstorages ? v->c->shards : NULL, &d.head, d.storages,
					 d.after, d.nstorages, &d.gathers, e->err);
	else
		*out = vfile_new_pt(v->c->shards, &d.w, d.storages, &d.gathers,
				    v->options.crc_zero ? NULL
				    : r->nstorages > 1  ? r->sums
							: &r->sum,
				    e->err);
	layout_done(&d);
	if (!*out)
		return -ENOMEM;
	write_path(e, path, sizeof(path));
	vfile_set_name(*out, strdup(path));
	return 0;
}

static int open_file(const struct entry *e, struct vfile **out)
{
	const struct entry_attrs facts = get_facts(e);

	if (group_of(e)->is_dir)
		return errmsg_set(e->err, -EISDIR, "is a directory");
	if (!facts.copied)
		return open_laid_out(e, out);
	*out = vfile_new_copy(facts.copied, facts.shard, e->err);
	return *out ? 0 : -ENOMEM;
}

int view_file_open(struct view *v, uint64_t node, struct vfile **out, struct errmsg *err)
{
	struct entry e;
	struct vfile *f;
	int rc = parse_node(v, node, &e, err) ? open_file(&e, &f)
					      : errmsg_set(err, -ENOENT, "no such file");

	if (rc)
		return rc;
	rc = vfile_check(f, err);
	if (rc)
		vfile_free(f);
	else
		*out = f;
	return rc;
}

void view_stat_dir(const struct view *v, const struct permissions *names, int64_t mtime_s,
		   struct view_stat *out)
{
	const struct stat *dir = &v->c->st;
	struct permissions list = { dir->st_uid, dir->st_gid, dir->st_mode & 0444 };

	permissions_restrict(&list, names);
	if (list.uid != dir->st_uid)
		list.mode = 0;
	if (list.gid != dir->st_gid)
		list.mode &= 0400;
	*out = (struct view_stat){ .is_dir = true,
				   .nlink = 2,
				   .uid = dir->st_uid,
				   .gid = dir->st_gid,
				   .mode = (dir->st_mode & 0111) | list.mode |
					   permissions_writers(&list, dir->st_mode),
				   .mtime_s = mtime_s };
}

struct readers {
	const struct checkpoint *c;
	struct permissions readable_by;
};

static int restrict_by_shard(void *ctx, uint32_t shard)
{
	struct readers *r = ctx;

	permissions_restrict(&r->readable_by, &r->c->files[shard].readable_by);
	return 0;
}

/* Restrict the readers of a file that is computed from some shards of a tag; initially they are
 * the readers of all its files. */
static int find_readers(const struct entry *e, struct permissions *out)
{
	const struct checkpoint *c = e->view->c;
	struct readers r = { c, c->names };
	struct vfile *f;
	int rc;

	*out = c->readable_by;
	if (!c->mixed)
		return 0;
	rc = open_file(e, &f);
	if (rc)
		return rc;
	vfile_each_shard(f, restrict_by_shard, &r);
	vfile_free(f);
	*out = r.readable_by;
	return 0;
}

static unsigned count_directories(const struct entry *in)
{
	struct view *v = in->view;
	unsigned n = 0;

	for (unsigned k = ENTRY_GROUP_FIRST; k < v->ngroups; k++) {
		const struct entry_group *g = &v->groups[k];

		if (!g->is_dir || !may_have(in, k))
			continue;
		if (!g->paths || !g->paths->dirs)
			n += (unsigned)g->n;
		for (size_t i = 0; g->paths && g->paths->dirs && i < g->n; i++) {
			const struct entry e = get_item(v, k, i, in->err);

			n += is_in(&e, in);
		}
	}
	return n;
}

int view_stat(struct view *v, uint64_t node, struct view_stat *out, struct errmsg *err)
{
	struct entry_attrs facts;
	struct permissions readable_by;
	struct entry e;
	int rc = 0;

	if (!parse_node(v, node, &e, err))
		return errmsg_set(err, -ENOENT, "no such file");
	facts = get_facts(&e);
	if (group_of(&e)->is_dir) {
		view_stat_dir(v, facts.readable_by, facts.mtime_s, out);
		out->nlink += count_directories(&e);
		return 0;
	}
	*out = (struct view_stat){ .scattered = facts.scattered,
				   .nlink = 1,
				   .mtime_s = facts.mtime_s };
	if (facts.copied)
		out->size = shards_id(facts.copied, facts.shard)->size;
	else
		rc = get_size(&e, &out->size);
	if (!rc && facts.readable_by)
		readable_by = *facts.readable_by;
	else if (!rc)
		rc = find_readers(&e, &readable_by);
	if (rc)
		return rc;
	out->uid = readable_by.uid;
	out->gid = readable_by.gid;
	out->mode = readable_by.mode | permissions_writers(&readable_by, v->c->st.st_mode);
	return 0;
}
