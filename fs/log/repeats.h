/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_REPEATS_H
#define UCFS_REPEATS_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct bytebuf;

/* Seconds after which a repeated line is printed again, with the number of repetitions. */
#define REPEATS_SECONDS 60

/* Number of different lines that are remembered.  All others are counted together. */
#define REPEATS_MAX 256

struct repeats_line {
	char *text;   /* text of the first occurrence */
	int priority; /* of syslog */
	time_t first, last, printed;
	uint64_t n;         /* number of occurrences */
	uint64_t unprinted; /* occurrences since the line was printed */
};

/*
 * Lines of a log, one for each cause and file.  Lines that differ in numbers alone,
 * such as offsets, have one cause; digits in names distinguish files.  Valid when
 * zero-initialised but for `print`; not thread-safe.
 */
struct repeats {
	/* `repeated`: occurrences since the line was printed, including this one; 0 if it is
	 * new. */
	void (*print)(int priority, const char *line, uint64_t repeated);
	struct repeats_line v[REPEATS_MAX]; /* in the order of `first` */
	size_t n;
	uint64_t left_out; /* lines for which there was no room */
	time_t left_out_printed;
};

/* Print a line, or count it. */
void repeats_add(struct repeats *r, int priority, const char *line, time_t now);

/* Print all lines that have occurred again since they were printed. */
void repeats_flush(struct repeats *r);

/* Append the lines to `out`, each with its time and the number of repetitions. */
void repeats_list(const struct repeats *r, struct bytebuf *out);

/* Set `text` to " (repeated 1,234 times)", or to nothing for 0. */
#define REPEATS_TEXT_MAX 64
void repeats_text(uint64_t n, char text[REPEATS_TEXT_MAX]);

void repeats_done(struct repeats *r);

#endif
