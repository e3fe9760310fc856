/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any sequence of calls of uckpt.h, with any arguments that a caller can get wrong, on a run
 * whose shards are damaged and repaired meanwhile: each call succeeds or fails, and what is
 * open is closed in the end.
 *
 *   byte 0    which run
 *   byte 1    a bit for each of the options
 *   then      calls: a byte for each, and bytes for its arguments
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/uckpt.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "tests/make/mkckpt.h"

#define RUNS 2
#define SLOTS 6
#define NODES 32
#define TAG "global_step4"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const options[] = {
	"crc=zero",  "ranks=3,1_z1", "replace",     "allow_other",
	"stage=any", "hf_dtype=bf16",   "dcp_ranks=3", "follow_links",
};

static const char *const paths[] = {
	"",
	TAG,
	TAG "_universal/zero/emb.weight/fp32.pt",
	TAG "_universal/zero/optimizer_state.pt",
	TAG "_hf/model.safetensors",
	TAG "_fp32/pytorch_model.bin",
	TAG "_dcp/.metadata",
	TAG "_dcp/model.emb.weight.distcp",
	TAG "_dp3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
	TAG "_dp1_z3",
	"latest_universal",
	"link/../" TAG,
	".ucfs/plan/" TAG ".json",
	".ucfs/errors",
};

static const char *const names[] = { "zero",       "fp32.pt",   TAG, TAG "_hf",
				     "..",         ".ucfs",     "",  "plan",
				     "emb.weight", "latest_dp3" };

static struct run {
	char *dir;
	char *path, *tag, *shard;
	struct bytebuf bytes; /* content of the shard */
} runs[RUNS];

/* A context and its open objects. */
struct session {
	struct uckpt *u;
	const uint8_t *at, *end; /* rest of the input */
	uint64_t nodes[NODES];
	size_t n; /* number of nodes seen; the oldest are forgotten */
	struct uckpt_file *files[SLOTS];
	struct uckpt_dir *dirs[SLOTS];
	struct uckpt_entry entry; /* the last entry seen */
	struct {
		struct uckpt_map *map;
		size_t file;
	} maps[SLOTS];
	const struct run *run;
	bool damaged;
};

static void remove_runs(void)
{
	for (size_t i = 0; i < RUNS; i++) {
		mkckpt_free_dir(runs[i].dir);
		free(runs[i].path);
		free(runs[i].tag);
		free(runs[i].shard);
		bytebuf_done(&runs[i].bytes);
	}
}

static char *in_dir(const char *dir, const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		abort();
	return path;
}

static void set_up(void)
{
	for (size_t i = 0; i < RUNS; i++) {
		struct run *const r = &runs[i];
		const struct mkckpt c = mkckpt_small(i ? 3 : 1);

		r->dir = mkckpt_new_dir();
		mkckpt_shell(r->dir,
			     "mkdir -p run/" TAG "; ln -s " TAG " run/link");
		r->path = in_dir(r->dir, "run");
		r->tag = in_dir(r->path, TAG);
		r->shard = in_dir(r->tag,
				  "zero_pp_rank_1_mp_rank_00_optim_states.pt");
		mkckpt_write(&c, r->tag);
		r->bytes = mkpt_load(r->shard);
	}
	atexit(remove_runs);
}

static uint8_t byte(struct session *s)
{
	return s->at < s->end ? *s->at++ : 0;
}

/* Return a number of up to eight bytes; small ones take fewer. */
static uint64_t number(struct session *s)
{
	uint64_t v = 0;

	for (unsigned n = byte(s) % 9; n; n--)
		v = v << 8 | byte(s);
	return v;
}

static void see(struct session *s, uint64_t node)
{
	s->nodes[s->n++ % NODES] = node;
}

/* Return a node that was seen, its neighbour, or any number. */
static uint64_t node(struct session *s)
{
	const uint8_t which = byte(s);

	if (which >= 0xf0 || !s->n)
		return number(s);
	return s->nodes[which % (s->n < NODES ? s->n : NODES)] ^
	       (which & 0x80 ? number(s) : 0);
}

static void ignore_text(void *arg, const char *text, size_t len)
{
	(void)arg;
	(void)text;
	(void)len;
}

static void use_names(struct session *s)
{
	struct uckpt_attr a;
	uint64_t found;
	char target[100];

	switch (byte(s) % 4) {
	case 0:
		if (!uckpt_find(s->u, paths[byte(s) % COUNT(paths)], &found,
				NULL))
			see(s, found);
		break;
	case 1:
		if (!uckpt_lookup(s->u, node(s), names[byte(s) % COUNT(names)],
				  &a, NULL, NULL))
			see(s, a.node);
		break;
	case 2:
		uckpt_stat(s->u, node(s), &a, NULL);
		break;
	default:
		uckpt_readlink(s->u, node(s), target, byte(s) % sizeof(target));
	}
}

static void use_dir(struct session *s)
{
	struct uckpt_dir **const d = &s->dirs[byte(s) % SLOTS];
	uint64_t pos = byte(s);
	struct uckpt_attr a;
	double timeout;

	switch (byte(s) % 4) {
	case 0:
		if (!*d && uckpt_dir_open(s->u, node(s), d, NULL))
			*d = NULL;
		break;
	case 1:
		pos = pos < 0xf0 ? pos : number(s);
		for (unsigned n = byte(s) % 8;
		     n && uckpt_dir_next(*d, &pos, &s->entry, NULL) == 1; n--)
			see(s, s->entry.node);
		break;
	case 2:
		uckpt_dir_stat(*d, &s->entry, &a, &timeout);
		see(s, uckpt_dir_parent(*d));
		break;
	default:
		uckpt_dir_close(*d);
		*d = NULL;
	}
}

/* Close a file after its mappings. */
static void close_file(struct session *s, size_t i)
{
	for (size_t k = 0; k < SLOTS; k++)
		if (s->maps[k].map && s->maps[k].file == i) {
			uckpt_map_free(s->maps[k].map, k % 2);
			s->maps[k].map = NULL;
		}
	uckpt_file_close(s->files[i]);
	s->files[i] = NULL;
}

static void use_map(struct session *s, size_t i)
{
	const size_t k = byte(s) % SLOTS;
	struct uckpt_map **const m = &s->maps[k].map;

	if (*m && byte(s) % 2) {
		uckpt_map_check(*m, NULL);
	} else if (*m) {
		uckpt_map_free(*m, byte(s) % 2);
		*m = NULL;
	} else {
		const size_t len = number(s);

		s->maps[k].file = i;
		if (len < 1 << 20 || len > INT64_MAX) /* the read may copy this much */
			uckpt_file_map(s->files[i], len, number(s), m, NULL);
	}
}

static void ask_file(struct session *s, struct uckpt_file *f)
{
	static struct ucfs_extents extents;
	struct ucfs_source source = { .version = UCFS_EXTENTS_VERSION };
	struct ucfs_literal literal = { .version = UCFS_EXTENTS_VERSION };
	struct uckpt_readers readers;
	int fd = -1;

	switch (byte(s) % 5) {
	case 0:
		extents.version = UCFS_EXTENTS_VERSION;
		extents.start = number(s);
		uckpt_file_extents(f, &extents);
		break;
	case 1:
		source.source = (uint32_t)number(s);
		uckpt_file_source(f, &source);
		break;
	case 2:
		literal.offset = number(s);
		uckpt_file_literal(f, &literal);
		break;
	case 3:
		if (!uckpt_file_descriptor(f, &fd, NULL) && fd >= 0)
			close(fd);
		break;
	default:
		uckpt_file_tensors(f, ignore_text, NULL, NULL);
	}
	uckpt_file_readers(f, &readers);
	uckpt_file_is_immutable(f);
	uckpt_file_size(f);
}

static void use_file(struct session *s)
{
	static uint8_t buf[1 << 16];
	const size_t i = byte(s) % SLOTS;
	struct uckpt_file **const f = &s->files[i];
	uint64_t offset;

	switch (byte(s) % 5) {
	case 0:
		if (!*f && uckpt_file_open(s->u, node(s), f, NULL))
			*f = NULL;
		break;
	case 1:
		offset = number(s);
		uckpt_file_read(*f, buf, number(s) % (sizeof(buf) + 1), offset,
				NULL);
		break;
	case 2:
		use_map(s, i);
		break;
	case 3:
		ask_file(s, *f);
		break;
	default:
		close_file(s, i);
	}
}

static void repair(struct session *s)
{
	if (s->damaged)
		mkpt_save(s->run->shard, s->run->bytes.data, s->run->bytes.len);
	s->damaged = false;
}

static void damage(struct session *s)
{
	const char *const shard = s->run->shard;
	FILE *f;

	s->damaged = true;
	switch (byte(s) % 3) {
	case 0:
		unlink(shard);
		break;
	case 1:
		if (truncate(shard, (off_t)(number(s) % s->run->bytes.len)))
			return; /* the option does not exist */
		break;
	default:
		f = fopen(shard, "r+b");
		if (!f)
			return;
		fseek(f, (long)(number(s) % s->run->bytes.len), SEEK_SET);
		fputc(byte(s), f);
		fclose(f);
	}
}

static void close_all(struct session *s)
{
	for (size_t i = 0; i < SLOTS; i++) {
		close_file(s, i);
		uckpt_dir_close(s->dirs[i]);
		s->dirs[i] = NULL;
	}
	uckpt_free(s->u);
	repair(s);
}

/* Set an option to any text. */
static void set_text(struct session *s)
{
	size_t n = 0;
	char text[64];

	while (uckpt_option_name(n))
		n++;
	n = (size_t)snprintf(text, 32, "%s", uckpt_option_name(byte(s) % n));
	for (size_t end = n + byte(s) % 24; n < end; n++)
		text[n] = (char)byte(s);
	text[n] = '\0';
	uckpt_set(s->u, text, NULL);
}

/* Open a source in a new context, in place of the open one. */
static void begin(struct session *s, const char *source)
{
	close_all(s);
	s->n = 0;
	s->u = uckpt_new();
	assert(s->u);
	for (unsigned n = byte(s) % 4; n; n--)
		set_text(s);
	uckpt_open(s->u, &source, 1, NULL);
	see(s, UCKPT_ROOT);
}

static void use_context(struct session *s)
{
	const char *const run = s->run->path;

	switch (byte(s) % 8) {
	case 0:
		uckpt_set(s->u, options[byte(s) % COUNT(options)], NULL);
		break;
	case 1:
		uckpt_open(s->u, (const char *const[]){ run, NULL },
			   1 + byte(s) % 2, NULL);
		break;
	case 2:
		uckpt_renew(s->u);
		break;
	case 3:
		uckpt_prefetch(s->u);
		uckpt_trim(s->u);
		break;
	case 4:
		uckpt_source_root(s->u, number(s));
		uckpt_is_view(s->u);
		break;
	case 5:
		damage(s);
		break;
	case 6:
		begin(s, byte(s) % 2 ? s->run->tag : run);
		break;
	default:
		repair(s);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct session s = { .at = data, .end = data + size };
	uint8_t set;

	if (!runs[0].dir)
		set_up();
	s.run = &runs[byte(&s) % RUNS];
	s.u = uckpt_new();
	assert(s.u);
	set = byte(&s);
	for (size_t i = 0; i < COUNT(options); i++)
		if (set >> i & 1)
			uckpt_set(s.u, options[i], NULL);
	uckpt_open(s.u, (const char *const[]){ s.run->path }, 1, NULL);
	see(&s, UCKPT_ROOT);
	while (s.at < s.end)
		switch (byte(&s) % 8) {
		case 0:
		case 1:
		case 2:
			use_names(&s);
			break;
		case 3:
		case 4:
			use_dir(&s);
			break;
		case 5:
		case 6:
			use_file(&s);
			break;
		default:
			use_context(&s);
		}
	close_all(&s);
	return 0;
}
