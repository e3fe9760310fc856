/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns from requests whether a store is slow, and how many requests it can serve at once.
 *
 * A thread that reads from the page cache may be preempted, but does not sleep: only requests that
 * slept count as slow.  The type of the file system does not tell: a remote mount is fast for files
 * in the page cache.
 */
#include "ckpt/remote/latency.h"

#include "ckpt/base/system.h"

/* The score rises with each slow request and falls with each fast one, which are more than half
 * of the requests to a store that is fast for some files only. */
#define SCORE_SLOW 2
#define SCORE_FAR 5
#define SCORE_MAX 24

/* One in SAMPLED small requests to a fast store is measured; large requests always are. */
#define SAMPLED 16
#define LARGE (256u << 10)

/* Doubling the requests must gain this factor, and halving them may lose it. */
#define GAIN 1.08
#define LOSS 0.97

/* The shortest epoch; the time until a failed attempt is repeated; every third attempt reduces
 * the requests. */
#define EPOCH_NS UINT64_C(30000000)
#define RETRY_NS UINT64_C(1000000000)
#define DOWN_EVERY 3

/* The cost of a request besides its bytes, in bytes: otherwise small requests would look like a
 * slow store. */
#define REQUEST_BYTES (64u << 10)

bool latency_is_high(const struct latency *f)
{
	return atomic_load_explicit(&f->score, memory_order_relaxed) >= SCORE_FAR;
}

bool latency_maybe_high(const struct latency *f)
{
	return atomic_load_explicit(&f->score, memory_order_relaxed) > 0;
}

void latency_begin(struct latency *f, struct latency_request *q, size_t len)
{
	q->measured = len >= LARGE || latency_maybe_high(f) ||
		      atomic_fetch_add_explicit(&f->calls, 1, memory_order_relaxed) % SAMPLED == 0;
	if (!q->measured)
		return;
	q->sleeps = clock_sleeps();
	q->begun = clock_ns();
}

void latency_end(struct latency *f, const struct latency_request *q)
{
	int score;
	bool slow;

	if (!q->measured)
		return;
	slow = clock_ns() - q->begun >= LATENCY_HIGH_NS && clock_sleeps() != q->sleeps;
	score = atomic_load(&f->score);
	/* A concurrent update may be lost, which does no harm. */
	if (slow && score < SCORE_MAX)
		atomic_compare_exchange_strong(
			&f->score, &score,
			score + (atomic_exchange(&f->was_slow, true) ? SCORE_SLOW : SCORE_FAR));
	else if (!slow && score > 0)
		atomic_compare_exchange_strong(&f->score, &score, score - 1);
}

void request_width_init(struct request_width *w, unsigned first)
{
	*w = (struct request_width){ .width = first, .settled = first };
}

static void begin_epoch(struct request_width *w, uint64_t now)
{
	w->begun = now;
	w->bytes = w->n = 0;
}

/* Try twice as many, or sometimes half as many, unless it is too early. */
static unsigned next_trial(struct request_width *w, uint64_t now)
{
	if (now < w->retry)
		return w->settled;
	if (++w->trials % DOWN_EVERY == 0 && w->settled > REQUEST_WIDTH_MIN)
		return w->settled / 2;
	return w->settled < REQUEST_WIDTH_MAX ? w->settled * 2 : w->settled;
}

/* End an epoch that had this rate. */
static void request_width_step(struct request_width *w, double rate, uint64_t now)
{
	const bool was_trial = w->width != w->settled;
	const double enough = w->width > w->settled ? GAIN : LOSS;

	if (was_trial && rate < w->rate * enough) {
		w->width = w->settled;
		w->retry = now + RETRY_NS;
		return;
	}
	if (was_trial && w->width < w->settled)
		w->retry = now + RETRY_NS;
	w->rate = rate;
	w->settled = w->width;
	w->width = next_trial(w, now);
}

void request_width_done(struct request_width *w, size_t len, bool busy, uint64_t now)
{
	if (!busy || !w->begun) {
		begin_epoch(w, now);
		return;
	}
	w->bytes += len + REQUEST_BYTES;
	/* The first requests of an epoch began in the previous one. */
	if (++w->n < 3 * w->width || now < w->begun + EPOCH_NS)
		return;
	request_width_step(w, (double)w->bytes / (double)(now - w->begun), now);
	begin_epoch(w, now);
}
