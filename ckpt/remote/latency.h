/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LATENCY_H
#define UCKPT_LATENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Is a store slow?  Learned from the time that its requests take: a slow one lets the reader
 * sleep for milliseconds each time, a disk only now and then, and the page cache never.
 * Zero-initialised it is fast; the first slow request makes it slow until others show it is not.
 * Thread-safe.
 */
struct latency {
	atomic_int score;
	atomic_uint calls;
	atomic_bool was_slow; /* some request was slow */
};

/* Requests that take longer are slow. */
#define LATENCY_HIGH_NS UINT64_C(1200000)

/* A request while it is measured. */
struct latency_request {
	bool measured;
	uint64_t begun;
	long sleeps;
};

/* Does the store answer slowly most of the time? */
bool latency_is_high(const struct latency *f);

/* Was a recent request slow?  If so, callers should measure their requests with latency_begin
 * and latency_end. */
bool latency_maybe_high(const struct latency *f);

/* Called before and after a request for `len` bytes, on one thread. */
void latency_begin(struct latency *f, struct latency_request *q, size_t len);
void latency_end(struct latency *f, const struct latency_request *q);

/*
 * How many requests should be under way?  Measured by trying: twice as many, kept if the store gets
 * faster; half as many, kept if it does not get slower.  Not thread-safe.
 */
struct request_width {
	unsigned width; /* requests at once */
	/* Private: */
	unsigned settled; /* `width` before the attempt in progress */
	double rate;      /* bytes per nanosecond when `width` was `settled` */
	unsigned trials;
	uint64_t retry; /* the time of the next attempt */
	/* The current epoch: its start, and the bytes and the number of its requests. */
	uint64_t begun, bytes;
	unsigned n;
};

/* The fewest and the most requests at once. */
#define REQUEST_WIDTH_MIN 4
#define REQUEST_WIDTH_MAX 128

/* Begin with `width` requests. */
void request_width_init(struct request_width *w, unsigned first);

/* A request for `len` bytes has ended at the time `now` (clock_ns).  `busy`: others
 * were waiting. */
void request_width_done(struct request_width *w, size_t len, bool busy, uint64_t now);

#endif
