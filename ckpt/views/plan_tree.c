/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of a plan: nodes, names, attributes and files, from the groups of entries
 * that a view has set.  A node is the number of its group and the entry's number in
 * it.
 *
 * A file's size follows from its pickle.  So a file is laid out when its size is first
 * asked for; the size and the checksums of its storages are then kept in a record.
 */
#include "ckpt/views/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/tagdir.h"
#include "ckpt/io/shards.h"
#include "ckpt/views/plan_impl.h"

#define GROUP_SHIFT 36

_Static_assert(PLAN_ZERO == (uint64_t)PLAN_GROUP_FIRST << GROUP_SHIFT,
	       "zero/ is the first group of trees that have it");
_Static_assert((uint64_t)PLAN_GROUPS_MAX << GROUP_SHIFT <= PLAN_NODE_END, "all groups must fit");

struct plan_record {
	uint64_t size; /* 0: not laid out yet; the following fields are not valid */
	size_t nstorages;
	union {
		vfile_crc sum;   /* checksum of the only storage */
		vfile_crc *sums; /* used if there are several storages */
	};
};

void plan_set_groups(struct plan *p, const struct plan_group *groups, size_t n)
{
	assert(n < PLAN_GROUPS_MAX);
	p->groups[PLAN_GROUP_ROOT] = (struct plan_group){ .is_dir = true, .n = 1, .dirs = 1 };
	p->ngroups = PLAN_GROUP_FIRST;
	for (size_t i = 0; i < n; i++) {
		const struct plan_group *dir = &p->groups[groups[i].dir];
		struct plan_group *g = &p->groups[p->ngroups++];

		assert(dir < g && dir->is_dir);
		*g = groups[i];
		g->dirs = dir->dirs * dir->n;
	}
}

static struct plan_item get_item(struct plan *p, unsigned group, size_t i, struct errmsg *err)
{
	const struct plan_group *g = &p->groups[group];

	return (struct plan_item){
		.p = p, .group = group, .i = i, .dir = i / g->n, .k = i % g->n, .err = err
	};
}

/* Find the entry of a node.  False if there is no such node. */
static bool parse_node(struct plan *p, uint64_t node, struct plan_item *out, struct errmsg *err)
{
	const uint64_t group = node >> GROUP_SHIFT;
	const uint64_t i = node & ((UINT64_C(1) << GROUP_SHIFT) - 1);

	if (group >= p->ngroups || i >= p->groups[group].dirs * p->groups[group].n)
		return false;
	*out = get_item(p, (unsigned)group, (size_t)i, err);
	return true;
}

static struct plan_group *group_of(const struct plan_item *e)
{
	return &e->p->groups[e->group];
}

static uint64_t node_of(uint64_t group, size_t i)
{
	return group << GROUP_SHIFT | i;
}

bool plan_is_dir(const struct plan *p, uint64_t node)
{
	const uint64_t k = node >> GROUP_SHIFT;

	return k < p->ngroups && p->groups[k].is_dir &&
	       node - node_of(k, 0) < p->groups[k].dirs * p->groups[k].n;
}

uint64_t plan_parent(const struct plan *p, uint64_t dir)
{
	const uint64_t i = dir - node_of(dir >> GROUP_SHIFT, 0);
	const struct plan_group *g = &p->groups[dir >> GROUP_SHIFT];

	assert(plan_is_dir(p, dir));
	if (g->paths && i < g->n && plan_paths_parent(g->paths, (size_t)i) != PLAN_PATH_TOP)
		return node_of(dir >> GROUP_SHIFT, plan_paths_parent(g->paths, (size_t)i));
	return node_of(g->dir, (size_t)i / g->n);
}

int plan_set_name(char out[NAME_MAX + 1], const char *name, const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	if (n + s > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(out, name, n);
	memcpy(out + n, suffix, s + 1);
	return 1;
}

/* Get the name of an entry: 1, or 0 if there is no such entry. */
static int get_name(const struct plan_item *e, char out[NAME_MAX + 1])
{
	const struct plan_group *g = group_of(e);
	const int rc = g->paths ? plan_paths_check(g->paths, e->err) : 0;

	if (rc)
		return rc;
	if (g->paths)
		return plan_set_name(out, plan_paths_name(g->paths, e->i), "");
	if (g->names || g->files)
		return plan_set_name(out, g->names ? g->names[e->k] : g->files[e->k].name, "");
	return g->name(e, out);
}

/* May a directory have entries of group k? */
static bool may_have(const struct plan_item *dir, unsigned k)
{
	const struct plan_group *g = &dir->p->groups[k];

	return g->dir == dir->group || (k == dir->group && g->paths && g->paths->dirs);
}

/* Is this the directory of an entry, in a group whose entries may lie in each other? */
static bool is_in(const struct plan_item *e, const struct plan_item *dir)
{
	const struct plan_paths *paths = group_of(e)->paths;

	return !paths ||
	       plan_paths_parent(paths, e->i) == (dir->group == e->group ? dir->i : PLAN_PATH_TOP);
}

/* Find a directory: 0 or -ENOTDIR. */
static int get_dir(struct plan *p, uint64_t node, struct plan_item *out, struct errmsg *err)
{
	return parse_node(p, node, out, err) && group_of(out)->is_dir
		       ? 0
		       : errmsg_set(err, -ENOTDIR, "not a directory");
}

int plan_next(struct plan *p, uint64_t dir, uint64_t *pos, struct plan_entry *out,
	      struct errmsg *err)
{
	struct plan_item in = { 0 };
	uint64_t at = *pos;
	int rc = get_dir(p, dir, &in, err);

	for (unsigned k = PLAN_GROUP_FIRST; !rc && k < p->ngroups; k++) {
		const struct plan_group *g = &p->groups[k];
		const size_t first = k == in.group ? 0 : in.i * g->n;

		if (!may_have(&in, k))
			continue;
		for (; !rc && at < g->n; at++) {
			const struct plan_item e = get_item(p, k, first + (size_t)at, err);

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
static int find_in_group(const struct plan_item *dir, unsigned k, const char *name, uint64_t *node)
{
	struct plan *p = dir->p;
	const struct plan_group *g = &p->groups[k];
	const size_t first = dir->i * g->n;
	char own[NAME_MAX + 1];

	if (g->paths) {
		const int64_t found =
			plan_paths_find(g->paths, k == dir->group ? dir->i : PLAN_PATH_TOP, name);
		const int rc = plan_paths_check(g->paths, dir->err);

		*node = node_of(k, (size_t)found);
		return rc ?: found < 0 ? -ENOENT : 0;
	}
	if (g->find) {
		const int64_t found = g->find(dir, k, name);

		*node = node_of(k, first + (size_t)found);
		return found < 0 ? -ENOENT : 0;
	}
	for (size_t i = first; i < first + g->n; i++) {
		const struct plan_item e = get_item(p, k, i, dir->err);
		const int rc = get_name(&e, own);

		*node = node_of(k, i);
		if (rc < 0 || (rc && strcmp(own, name) == 0))
			return rc < 0 ? rc : 0;
	}
	return -ENOENT;
}

int plan_lookup(struct plan *p, uint64_t dir, const char *name, uint64_t *node, struct errmsg *err)
{
	struct plan_item in = { 0 };
	int rc = get_dir(p, dir, &in, err);

	if (rc)
		return rc;
	rc = -ENOENT;
	for (unsigned k = PLAN_GROUP_FIRST; k < p->ngroups && rc == -ENOENT; k++)
		if (may_have(&in, k))
			rc = find_in_group(&in, k, name, node);
	return rc;
}

/* Return the record of a file, or NULL if memory is short.  The caller holds the lock. */
static struct plan_record *get_record(const struct plan_item *e)
{
	struct plan_group *g = group_of(e);
	struct plan_record **all;

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

void plan_forget_files(struct plan *p)
{
	for (struct plan_group *g = p->groups; g < p->groups + p->ngroups; g++) {
		for (size_t k = 0; g->records && k < g->n; k++) {
			struct plan_record *v = g->records[k];

			for (size_t d = 0; v && d < g->dirs; d++)
				if (v[d].nstorages > 1)
					free(v[d].sums);
			free(v);
		}
		free(g->records);
	}
}

/* Record the results of a layout.  The caller holds the lock. */
static int record_file(struct plan_record *r, const struct file_layout *d, const char *stem)
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
static int lay_out(const struct plan_item *e, bool extents, struct file_layout *d,
		   struct plan_record **record)
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
		pthread_mutex_lock(&e->p->c->u->lock);
		*record = get_record(e);
		rc = record_file(*record, d, stem);
		pthread_mutex_unlock(&e->p->c->u->lock);
	}
	if (rc)
		layout_done(d);
	return rc;
}

static int get_size(const struct plan_item *e, uint64_t *size)
{
	struct plan_record *r;
	struct file_layout d;
	int rc;

	pthread_mutex_lock(&e->p->c->u->lock);
	r = get_record(e);
	*size = r ? r->size : 0;
	pthread_mutex_unlock(&e->p->c->u->lock);
	if (*size)
		return 0;
	rc = lay_out(e, false, &d, &r);
	if (rc)
		return rc;
	*size = d.size;
	layout_done(&d);
	return 0;
}

int plan_file_size(struct plan *p, unsigned group, size_t i, uint64_t *size, struct errmsg *err)
{
	const struct plan_item e = get_item(p, group, i, err);

	return get_size(&e, size);
}

struct plan_facts plan_copy_of(const struct tag_file *f, const struct tag_file *files,
			       struct shards *shards)
{
	return (struct plan_facts){ .mtime_s = f->mtime_s,
				    .readable_by = &f->readable_by,
				    .copied = shards,
				    .shard = (uint32_t)(f - files) };
}

static struct plan_facts get_facts(const struct plan_item *e)
{
	const struct plan_group *g = group_of(e);
	const struct checkpoint *c = e->p->c;
	struct plan_facts facts = {
		.mtime_s = c->mtime_s,
		.readable_by = g->is_dir ? &e->p->names : g->readable_by,
	};

	if (g->files)
		facts = plan_copy_of(&g->files[e->k], g->shards ? g->files : c->files,
				     g->shards ?: c->shards);
	if (g->lay_out)
		facts.copied = NULL;
	if (g->describe)
		g->describe(e, &facts);
	return facts;
}

static struct plan_item get_dir_of(const struct plan_item *e, struct errmsg *err)
{
	const struct plan_group *g = group_of(e);
	const size_t in = g->paths ? plan_paths_parent(g->paths, e->i) : PLAN_PATH_TOP;

	return in == PLAN_PATH_TOP ? get_item(e->p, g->dir, e->dir, err)
				   : get_item(e->p, e->group, in, err);
}

/* Write the path of an entry, from the name of its view on, cut to fit. */
static void write_path(const struct plan_item *e, char *out, size_t size)
{
	char name[NAME_MAX + 1] = "", suffix[VIEW_SUFFIX_MAX];
	struct plan_item dir;
	struct errmsg ignored;
	size_t n;

	if (e->group == PLAN_GROUP_ROOT) {
		view_type_suffix(&e->p->options.type, suffix);
		snprintf(out, size, "%s%s", e->p->c->tag, suffix);
		return;
	}
	dir = get_dir_of(e, &ignored);
	write_path(&dir, out, size);
	get_name(e, name);
	n = strlen(out);
	snprintf(out + n, size - n, "/%s", name);
}

static int open_laid_out(const struct plan_item *e, struct vfile **out)
{
	const struct plan *p = e->p;
	char path[3 * NAME_MAX];
	struct plan_record *r;
	struct file_layout d;
	const int rc = lay_out(e, true, &d, &r);

	if (rc)
		return rc;
	if (d.head.len)
		*out = vfile_new_tensors(d.nstorages ? p->c->shards : NULL, &d.head, d.storages,
					 d.after, d.nstorages, &d.gathers, e->err);
	else
		*out = vfile_new_pt(p->c->shards, &d.w, d.storages, &d.gathers,
				    p->options.crc_zero ? NULL
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

static int open_file(const struct plan_item *e, struct vfile **out)
{
	const struct plan_facts facts = get_facts(e);

	if (group_of(e)->is_dir)
		return errmsg_set(e->err, -EISDIR, "is a directory");
	if (!facts.copied)
		return open_laid_out(e, out);
	*out = vfile_new_copy(facts.copied, facts.shard, e->err);
	return *out ? 0 : -ENOMEM;
}

int plan_file_open(struct plan *p, uint64_t node, struct vfile **out, struct errmsg *err)
{
	struct plan_item e;
	struct vfile *f;
	int rc = parse_node(p, node, &e, err) ? open_file(&e, &f)
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

void plan_stat_dir(const struct plan *p, const struct permissions *names, int64_t mtime_s,
		   struct plan_stat *out)
{
	const struct stat *dir = &p->c->st;
	struct permissions list = { dir->st_uid, dir->st_gid, dir->st_mode & 0444 };

	permissions_restrict(&list, names);
	if (list.uid != dir->st_uid)
		list.mode = 0;
	if (list.gid != dir->st_gid)
		list.mode &= 0400;
	*out = (struct plan_stat){ .is_dir = true,
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
static int find_readers(const struct plan_item *e, struct permissions *out)
{
	const struct checkpoint *c = e->p->c;
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

static unsigned count_directories(const struct plan_item *in)
{
	struct plan *p = in->p;
	unsigned n = 0;

	for (unsigned k = PLAN_GROUP_FIRST; k < p->ngroups; k++) {
		const struct plan_group *g = &p->groups[k];

		if (!g->is_dir || !may_have(in, k))
			continue;
		if (!g->paths || !g->paths->dirs)
			n += (unsigned)g->n;
		for (size_t i = 0; g->paths && g->paths->dirs && i < g->n; i++) {
			const struct plan_item e = get_item(p, k, i, in->err);

			n += is_in(&e, in);
		}
	}
	return n;
}

int plan_stat(struct plan *p, uint64_t node, struct plan_stat *out, struct errmsg *err)
{
	struct plan_facts facts;
	struct permissions readable_by;
	struct plan_item e;
	int rc = 0;

	if (!parse_node(p, node, &e, err))
		return errmsg_set(err, -ENOENT, "no such file");
	facts = get_facts(&e);
	if (group_of(&e)->is_dir) {
		plan_stat_dir(p, facts.readable_by, facts.mtime_s, out);
		out->nlink += count_directories(&e);
		return 0;
	}
	*out = (struct plan_stat){ .scattered = facts.scattered,
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
	out->mode = readable_by.mode | permissions_writers(&readable_by, p->c->st.st_mode);
	return 0;
}
