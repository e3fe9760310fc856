/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One damaged shard makes every request for its tensors fail, thousands in a second, and one lost
 * disk damages thousands of shards.  To keep the log readable, a line is printed at its first
 * occurrence, and then at most once in an interval.
 */
#include "fs/log/repeats.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "ckpt/base/bytes.h"

#define LEFT_OUT "more causes and files than are listed; the rest is left out"

/* The number of digits of a number at `p`; 0 if its neighbours show that it is part of a name. */
static size_t number_len(const char *p, char before)
{
	const size_t n = strspn(p, "0123456789");

	return n && strchr(" (", before) && strchr(" ,:;)", p[n]) ? n : 0;
}

/* Do two lines differ in numbers alone? */
static bool same_cause(const char *a, const char *b)
{
	char before = 'a';

	while (*a || *b) {
		const size_t n = number_len(a, before);
		const size_t m = number_len(b, before);

		if (!n != !m || (!n && *a != *b))
			return false;
		before = *a;
		a += n ? n : 1;
		b += m ? m : 1;
	}
	return true;
}

static struct repeats_line *repeats_find(struct repeats *r, const char *line)
{
	for (size_t i = 0; i < r->n; i++)
		if (same_cause(r->v[i].text, line))
			return &r->v[i];
	return NULL;
}

static void print_repeats(struct repeats *r, struct repeats_line *l, time_t now)
{
	r->print(l->priority, l->text, l->unprinted);
	l->printed = now;
	l->unprinted = 0;
}

/* Forget the line whose last occurrence is oldest, if that is at least an interval ago. */
static void make_room(struct repeats *r, time_t now)
{
	size_t oldest = 0;

	for (size_t i = 1; i < r->n; i++)
		if (r->v[i].last < r->v[oldest].last)
			oldest = i;
	if (now - r->v[oldest].last < REPEATS_SECONDS)
		return;
	if (r->v[oldest].unprinted)
		print_repeats(r, &r->v[oldest], now);
	free(r->v[oldest].text);
	r->n--;
	memmove(&r->v[oldest], &r->v[oldest + 1],
		(r->n - oldest) * sizeof(*r->v));
}

/* Print, once in an interval, the number of lines that were not remembered. */
static void leave_out(struct repeats *r, time_t now)
{
	r->left_out++;
	if (r->left_out > 1 && now - r->left_out_printed < REPEATS_SECONDS)
		return;
	r->print(LOG_WARNING, LEFT_OUT, r->left_out > 1 ? r->left_out : 0);
	r->left_out_printed = now;
}

static void add_new(struct repeats *r, int priority, const char *line,
		    time_t now)
{
	char *text = strdup(line);

	for (size_t i = 0; i < r->n; i++)
		if (r->v[i].unprinted && now - r->v[i].printed >= REPEATS_SECONDS)
			print_repeats(r, &r->v[i], now);
	if (text && r->n == REPEATS_MAX)
		make_room(r, now);
	if (!text || r->n == REPEATS_MAX) {
		free(text);
		leave_out(r, now);
		return;
	}
	r->v[r->n++] = (struct repeats_line){ .text = text,
					      .priority = priority,
					      .first = now,
					      .last = now,
					      .printed = now,
					      .n = 1 };
	r->print(priority, line, 0);
}

void repeats_add(struct repeats *r, int priority, const char *line, time_t now)
{
	struct repeats_line *l = repeats_find(r, line);

	if (!l) {
		add_new(r, priority, line, now);
		return;
	}
	l->n++;
	l->unprinted++;
	l->last = now;
	if (now - l->printed >= REPEATS_SECONDS)
		print_repeats(r, l, now);
}

void repeats_flush(struct repeats *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->v[i].unprinted)
			print_repeats(r, &r->v[i], r->v[i].last);
}

void repeats_text(uint64_t n, char text[REPEATS_TEXT_MAX])
{
	char digits[24], *to = text;
	const int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);

	*to = '\0';
	if (!n)
		return;
	to += sprintf(to, " (repeated ");
	for (int i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			*to++ = ',';
		*to++ = digits[i];
	}
	strcpy(to, n == 1 ? " time)" : " times)");
}

void repeats_list(const struct repeats *r, struct bytebuf *out)
{
	char stamp[32], again[REPEATS_TEXT_MAX];
	struct tm tm;

	for (size_t i = 0; i < r->n; i++) {
		const struct repeats_line *l = &r->v[i];

		strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ",
			 gmtime_r(&l->first, &tm));
		repeats_text(l->n - 1, again);
		bytebuf_add_format(out, "%s %s%s\n", stamp, l->text, again);
	}
	if (r->left_out) {
		repeats_text(r->left_out, again);
		bytebuf_add_format(out, LEFT_OUT "%s\n", again);
	}
}

void repeats_done(struct repeats *r)
{
	for (size_t i = 0; i < r->n; i++)
		free(r->v[i].text);
	r->n = 0;
}
