/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pack/packed.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "tests/make/mkpt.h"

/* Files in the order of their names. */
enum { ROOT, DIRECTORY, COPY, EMPTY, MASTER, TEXT, WEIGHTS };

static const char *const names[PACKED_FILES] = { "",       "dir",    "dir/copy",
						 "empty",  "master", "text",
						 "weights" };

/* Bytes before and after the floats of a file. */
#define HEAD 37
#define TAIL 11

static uint32_t draw(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(*seed >> 32);
}

static void add_file(struct packed *p, int i, size_t size)
{
	struct stat st;
	FILE *f;

	p->bytes[i] = p->bytes[i] ? p->bytes[i] : calloc(1, size + 1);
	f = fopen(names[i], "we");
	if (!f || fwrite(p->bytes[i], 1, size, f) != size || fclose(f) ||
	    stat(names[i], &st))
		abort();
	p->in[i].mode = st.st_mode;
	p->in[i].mtime_s = st.st_mtim.tv_sec;
	p->in[i].mtime_ns = (uint32_t)st.st_mtim.tv_nsec;
	fileid_from_stat(&st, &p->in[i].id);
}

static void add_region(struct pack_input *in, struct pack_region r)
{
	in->regions =
		realloc(in->regions, (in->nregions + 1) * sizeof(*in->regions));
	if (!in->regions)
		abort();
	in->regions[in->nregions++] = r;
}

/* Add regions: HEAD bytes, `len` bytes of `r`, TAIL bytes. */
static void add_regions(struct pack_input *in, uint64_t len,
			struct pack_region r)
{
	add_region(in, (struct pack_region){ .len = HEAD });
	r.start = HEAD;
	r.len = len;
	add_region(in, r);
	add_region(in, (struct pack_region){ .start = HEAD + len, .len = TAIL });
}

static void make_contents(struct packed *p, size_t n, bool differ)
{
	uint64_t seed = n;
	float *const floats = calloc(n, sizeof(*floats));

	for (int i = COPY; i < PACKED_FILES; i++)
		p->bytes[i] = calloc(1, HEAD + n * sizeof(float) + TAIL + 1);
	for (size_t i = 0; i < n; i++)
		floats[i] = ((float)draw(&seed) / 4294967296.0f - 0.5f) *
			    ((float)draw(&seed) / 4294967296.0f) * 0.1f;
	memcpy(p->bytes[MASTER] + HEAD, floats, n * sizeof(float));
	memcpy(p->bytes[COPY] + HEAD, floats, n * sizeof(float));
	cast(DTYPE_F32, floats, DTYPE_BF16, p->bytes[WEIGHTS] + HEAD, n);
	if (differ) {
		p->bytes[WEIGHTS][HEAD] ^= 1;
		p->bytes[WEIGHTS][HEAD + n] ^= 0x40;
		p->bytes[COPY][HEAD + 2 * n] ^= 1;
		p->bytes[COPY][HEAD + 4 * n - 1] ^= 1;
	}
	for (size_t i = 0; i < n; i++)
		p->bytes[TEXT][i] = (uint8_t) "shards of a rank "[i % 17];
	for (int i = COPY; i < PACKED_FILES; i++)
		memset(p->bytes[i], 'h', HEAD);
	free(floats);
}

static void make_inputs(struct packed *p, size_t n)
{
	const struct pack_region masters = { .kind = PACK_STORED,
					     .type = BLOCK_F32 };
	const struct pack_region weights = { .kind = PACK_ROUNDED,
					     .type = BLOCK_BF16,
					     .source = MASTER,
					     .from = HEAD };
	const struct pack_region copy = { .kind = PACK_COPY,
					  .type = BLOCK_F32,
					  .source = MASTER,
					  .from = HEAD };

	if (mkdir("dir", 0750) && errno != EEXIST)
		abort();
	add_file(p, COPY, HEAD + 4 * n + TAIL);
	add_file(p, EMPTY, 0);
	add_file(p, MASTER, HEAD + 4 * n + TAIL);
	add_file(p, TEXT, n);
	add_file(p, WEIGHTS, HEAD + 2 * n + TAIL);
	add_regions(&p->in[COPY], 4 * n, copy);
	add_regions(&p->in[MASTER], 4 * n, masters);
	add_regions(&p->in[WEIGHTS], 2 * n, weights);
	add_region(&p->in[TEXT], (struct pack_region){ .len = n });
	p->in[ROOT].mode = S_IFDIR | 0700;
	p->in[DIRECTORY].mode = S_IFDIR | 01750;
	p->in[TEXT].mode |= 06000; /* unpacking does not restore setuid and setgid */
	p->in[DIRECTORY].mtime_s = -5; /* before 1970 */
	for (int i = 0; i < PACKED_FILES; i++) {
		p->in[i].path = (char *)names[i];
		p->in[i].name = (char *)names[i];
	}
}

void packed_make(struct packed *p, bool large, unsigned threads)
{
	const struct pack_work w = { .name = "pack", .width = threads };
	const size_t n = large ? 2500 * 1024 + 3 : 5000;
	struct errmsg err = { "" };
	int fd;

	*p = (struct packed){ 0 };
	make_contents(p, n, large);
	make_inputs(p, n);
	fd = open("pack", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || pack_write(fd, p->in, PACKED_FILES, &w, &err)) {
		fprintf(stderr, "%s\n", err.text);
		abort();
	}
	close(fd);
}

void packed_done(struct packed *p)
{
	for (int i = 0; i < PACKED_FILES; i++) {
		free(p->in[i].regions);
		free(p->bytes[i]);
	}
}

uint8_t *packed_load(size_t *size)
{
	struct bytebuf b = mkpt_load("pack");

	*size = b.len;
	return b.data;
}
