/* SPDX-License-Identifier: Apache-2.0 */
/* A hash of everything that determines the bytes of a tree. */
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/user_rules.h"
#include "ckpt/views/view_impl.h"

static int hash_rules(const struct value *rules, uint64_t *hash, struct errmsg *err)
{
	struct bytebuf bytes = { 0 };
	int rc = rules ? pickle_dump(rules, &bytes, NULL, err) : 0;

	if (!rc && bytes.failed)
		rc = errmsg_nomem(err, NULL);
	if (!rc)
		*hash = hash_bytes(*hash, bytes.data, bytes.len);
	bytebuf_done(&bytes);
	return rc;
}

int view_identity(struct view *view, uint64_t *out, struct errmsg *err)
{
	const struct view_options *o = &view->options;
	const uint64_t options[] = { o->type.kind,  o->type.ranks, o->type.stage,
				     o->crc_zero,   o->any_stage,  o->dtype,
				     o->shard_size, o->dcp_style,  o->dcp_ranks };
	uint64_t hash = hash_bytes(0, PACKAGE_VERSION, sizeof(PACKAGE_VERSION));
	struct view_entry e;
	uint64_t pos = 0;
	int rc = 0;

	hash = hash_bytes(hash, options, sizeof(options));
	hash = hash_bytes(hash, view->c->path, strlen(view->c->path));
	if (view->c->u->model)
		hash = hash_bytes(hash, view->c->u->model, strlen(view->c->u->model));
	if (o->rules)
		rc = hash_rules(o->rules->preset.info, &hash, err)
			     ?: hash_rules(o->rules->file.info, &hash, err);
	for (size_t i = 0; i < shards_count(view->c->shards); i++) {
		const char *path = shards_path(view->c->shards, (uint32_t)i);
		const struct fileid *id = shards_id(view->c->shards, (uint32_t)i);
		/* The ctime shows that a file was written to although its mtime was set back.  A
		 * new link changes it, too, and restarts a conversion, which is safe. */
		const uint64_t v[] = { id->ino, id->size, (uint64_t)id->mtime_ns,
				       (uint64_t)id->ctime_ns };

		hash = hash_bytes(hash, path, strlen(path) + 1);
		hash = hash_bytes(hash, v, sizeof(v));
	}
	/* The names of files that are copied from the tag's neighbours, or from the model that
	 * hf_config names. */
	while (!rc && (rc = view_next(view, VIEW_ROOT, &pos, &e, err)) == 1) {
		hash = hash_bytes(hash, e.name, strlen(e.name) + 1);
		rc = 0;
	}
	*out = hash;
	return rc;
}
