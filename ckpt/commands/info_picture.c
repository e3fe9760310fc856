/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the elements of each parameter lie, as SVG: a box for each, a colour for each file.
 *
 * A parameter that consists of runs of files is drawn from its first byte to its last, left to
 * right.  A parameter joined from slices, as with tensor parallelism, is drawn as a matrix: its
 * columns from left to right, its rows from top to bottom.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/info_html.h"
#include "ckpt/io/io.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/geometry.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"

/* Limits the size of a page to some 6 MB. */
#define ROWS_MAX 3000
#define PIECES_MAX 400 /* of a row */
#define ALL_PIECES_MAX 30000

#define WIDTH 1000.0
#define HEIGHT 20.0

struct picture {
	struct checkpoint *c;
	struct bytebuf *out;
	uint32_t *colours; /* for each file: 1 + number in the order of use; 0: not used */
	uint32_t *used;    /* numbers of the files in use */
	size_t nused;
	size_t pieces, all; /* pieces drawn: in this row; in total */
	bool cut;           /* the row has more pieces than are drawn */
};

/* A rectangle, in parts of its parameter's box. */
struct area {
	double x, y, width, height;
};

static uint32_t colour_of(struct picture *p, uint32_t file)
{
	if (!p->colours[file]) {
		p->used[p->nused++] = file;
		p->colours[file] = (uint32_t)p->nused;
	}
	return p->colours[file] - 1;
}

/* Begin a rectangle, whose title follows.  False if the row has too many. */
static bool begin_piece(struct picture *p, const struct extent *e, const struct area *a)
{
	if (p->pieces == PIECES_MAX) {
		p->cut = true;
		return false;
	}
	p->pieces++;
	p->all++;
	bytebuf_add_format(p->out,
			   "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" class=\"",
			   a->x * WIDTH, a->y * HEIGHT, a->width * WIDTH, a->height * HEIGHT);
	if (e->kind == EXTENT_SHARD)
		bytebuf_add_format(p->out, "f%" PRIu32, colour_of(p, e->shard));
	else
		bytebuf_add_str(p->out, "none");
	bytebuf_add_str(p->out, "\"><title>");
	return true;
}

/* End the title, with the file's name, and the rectangle. */
static void end_piece(struct picture *p, const struct extent *e)
{
	char at[SIZE_TEXT_LEN];

	bytebuf_add_str(p->out, ": ");
	if (e->kind == EXTENT_SHARD) {
		html_text(p->out, p->c->files[e->shard].name);
		bytebuf_add_format(p->out, ", from byte %s", count_text(e->from, at));
	} else {
		bytebuf_add_str(p->out, "zeros, which no file has");
	}
	bytebuf_add_str(p->out, "</title></rect>");
}

static double within(double x, double max)
{
	return x < 0 ? 0 : x > max ? max : x;
}

/* Draw the elements of a segment: columns of the matrix, and for each run of its source the
 * run's rows, of which the first and the last may be partial. */
static void draw_segment(struct picture *p, const struct gather *x,
			 const struct geometry_segment *s, const struct area *in)
{
	const struct extent_map *m = &x->sources[s->source];
	const double size = (double)dtype_size(x->dtype), rows = (double)x->g.rows;
	const double stride = (double)x->g.stride[s->source], columns = (double)x->g.row_len;

	for (size_t i = 0; i < m->n; i++) {
		const struct extent *e = &m->v[i];
		const double first = (double)e->start / size - (double)s->from;
		const double end = (double)e[1].start / size - (double)s->from;
		double left = 0, right = (double)s->len, top = 0, bottom = rows;
		struct area a;

		if (rows > 1 && stride > 0) {
			top = within(first / stride, rows);
			/* The column after a row's last one is in the next row. */
			bottom = end >= (rows - 1) * stride + right ? rows : within(end / stride, rows);
		} else {
			left = within(first, right);
			right = within(end, right);
		}
		a = (struct area){ in->x + in->width * ((double)s->at + left) / columns,
				   in->y + in->height * top / rows,
				   in->width * (right - left) / columns,
				   in->height * (bottom - top) / rows };
		if (a.width <= 0 || a.height <= 0)
			continue;
		if (!begin_piece(p, e, &a))
			return;
		bytebuf_add_format(p->out, "columns %.0f to %.0f, rows %.6g to %.6g",
				   (double)s->at + left, (double)s->at + right, top, bottom);
		end_piece(p, e);
	}
}

static void draw_runs(struct picture *p, const struct extent_map *m,
		      const struct gathers *gathers, const struct area *in, const char *what);

static void draw_gather(struct picture *p, const struct gather *x, const struct area *in)
{
	const double height = in->height / (double)x->nsources; /* height of a band */

	if (x->view) {
		draw_runs(p, x->sources, NULL, in, "in another order: bytes");
	} else if (x->g.mean) {
		for (size_t i = 0; i < x->nsources; i++)
			draw_runs(p, &x->sources[i], NULL,
				  &(struct area){ in->x, in->y + height * (double)i, in->width, height },
				  "averaged: bytes");
	} else {
		for (size_t i = 0; i < x->g.nsegs; i++)
			draw_segment(p, x, &x->g.segs[i], in);
	}
}

/* Draw a map from left to right; `what` describes its bytes.  Bytes of gathers have no
 * description. */
static void draw_runs(struct picture *p, const struct extent_map *m,
		      const struct gathers *gathers, const struct area *in, const char *what)
{
	const double size = (double)extent_size(m);

	for (size_t i = 0; i < m->n; i++) {
		const struct extent *e = &m->v[i];
		const struct area a = { in->x + in->width * (double)e->start / size, in->y,
					in->width * (double)(e[1].start - e->start) / size,
					in->height };
		char from[SIZE_TEXT_LEN], to[SIZE_TEXT_LEN];

		if (e->kind == EXTENT_GATHER) {
			draw_gather(p, gathers->v[e->shard], &a);
			continue;
		}
		if (!begin_piece(p, e, &a))
			return;
		bytebuf_add_format(p->out, "%s %s to %s", what, count_text(e->start, from),
				   count_text(e[1].start, to));
		end_piece(p, e);
	}
}

/* Describe the form of a row, or the reason why it has no picture. */
static void add_remark(struct picture *p, const struct param *x, const char *why)
{
	bytebuf_add_str(p->out, "<td>");
	if (*why) {
		html_text(p->out, why);
	} else if (x->same) {
		bytebuf_add_str(p->out, "is ");
		html_text(p->out, x->same->name);
	} else {
		for (unsigned i = 0; i < x->ndim; i++)
			bytebuf_add_format(p->out, "%s%" PRIu64, i ? " &#215; " : "", x->shape[i]);
	}
	if (p->cut)
		bytebuf_add_format(p->out, "; the first %d pieces", PIECES_MAX);
	bytebuf_add_str(p->out, "</td></tr>\n");
}

static void add_row(struct picture *p, const struct param *x)
{
	struct extent_map m = { 0 };
	struct gathers gathers = { 0 };
	struct errmsg why = { "" };

	p->pieces = 0;
	p->cut = false;
	bytebuf_add_str(p->out, "<tr><th>");
	html_text(p->out, x->name);
	bytebuf_add_str(p->out, "</th><td class=\"box\">");
	if (!x->same && !checkpoint_weights(p->c, x, x->dtype, &m, &gathers, &why) && m.n) {
		bytebuf_add_format(p->out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\""
				   " preserveAspectRatio=\"none\">", WIDTH, HEIGHT);
		draw_runs(p, &m, &gathers, &(struct area){ 0, 0, 1, 1 }, "bytes");
		bytebuf_add_str(p->out, "</svg>");
	}
	bytebuf_add_str(p->out, "</td>");
	add_remark(p, x, why.text);
	extent_done(&m);
	gathers_done(&gathers);
}

/* Hues that differ by the golden angle: consecutive ones differ most. */
static void add_legend(const struct picture *p, struct bytebuf *out)
{
	bytebuf_add_str(out, "<style>\n");
	for (size_t i = 0; i < p->nused; i++)
		bytebuf_add_format(out, ".f%zu { color: hsl(%.0f %d%% %d%%) }\n", i,
				   210 + 137.508 * (double)i, i % 2 ? 45 : 60, i % 3 ? 58 : 48);
	bytebuf_add_str(out, "</style>\n<ul class=\"legend\">\n");
	for (size_t i = 0; i < p->nused; i++) {
		bytebuf_add_format(out, "<li><span class=\"f%zu\"></span> ", i);
		html_text(out, p->c->files[p->used[i]].name);
		bytebuf_add_str(out, "</li>\n");
	}
	bytebuf_add_str(out, "</ul>\n");
}

void info_picture(struct checkpoint *c, struct bytebuf *out)
{
	struct bytebuf rows = { 0 };
	struct picture p = { .c = c, .out = &rows };
	struct errmsg why = { "" };
	char drawn[SIZE_TEXT_LEN], all[SIZE_TEXT_LEN];
	const int rc = checkpoint_order(c, &why);
	size_t n = 0;

	p.colours = calloc(c->nfiles + 1, sizeof(*p.colours));
	p.used = calloc(c->nfiles + 1, sizeof(*p.used));
	rows.failed = !p.colours || !p.used;
	if (rc) {
		bytebuf_add_str(out, "<p>");
		html_text(out, why.text);
		bytebuf_add_str(out, "</p>\n");
	}
	while (!rows.failed && n < c->norder && n < ROWS_MAX && p.all < ALL_PIECES_MAX)
		add_row(&p, c->order[n++]);
	if (!rows.failed) {
		add_legend(&p, out);
		bytebuf_add_str(out, "<table class=\"picture\">\n");
		bytebuf_add(out, rows.data, rows.len);
		bytebuf_add_str(out, "</table>\n");
	}
	out->failed |= rows.failed;
	bytebuf_done(&rows);
	if (n < c->norder)
		bytebuf_add_format(out, "<p>The first %s of %s are drawn.</p>\n",
				   count_text(n, drawn), count_text(c->norder, all));
	free(p.colours);
	free(p.used);
}
