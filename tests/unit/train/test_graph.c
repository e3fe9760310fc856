/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each replay runs the operations that the CUDA backend recorded, on the memory's current content,
 * in the order of events.  An operation that cannot be recorded ends the recording with an error,
 * after which the backend works as before.
 *
 * Built twice, like test_cuda: test_graph runs on a GPU, test_graph_emulated everywhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "gpu/cuda/backend_cuda.h"
#include "tests/support/unit.h"

#define N 1000

static const struct backend_ops *o;

static struct {
	struct backend *b;
	float *in, *out;    /* pinned, N numbers */
	float *x, *y, *sum; /* on the device */
	struct backend_event *event, *back;
} at;

static void begin(void)
{
	const struct backend_cuda_options options = { .deterministic = true };
	struct errmsg err = { "" };

	if (backend_cuda_new(&at.b, DTYPE_F32, &options, &err))
		fail_msg("%s", err.text);
	o = at.b->ops;
	at.in = o->host_alloc(at.b, N * sizeof(*at.in));
	at.out = o->host_alloc(at.b, N * sizeof(*at.out));
	at.x = o->alloc(at.b, N * sizeof(*at.x));
	at.y = o->alloc(at.b, N * sizeof(*at.y));
	at.sum = o->alloc(at.b, N * sizeof(*at.sum));
	at.event = o->event_new(at.b);
	at.back = o->event_new(at.b);
	assert_true(at.in && at.out && at.x && at.y && at.sum && at.event && at.back);
}

static void end(void)
{
	o->event_free(at.b, at.event);
	o->event_free(at.b, at.back);
	o->free(at.b, at.x);
	o->free(at.b, at.y);
	o->free(at.b, at.sum);
	o->host_free(at.b, at.in);
	o->host_free(at.b, at.out);
	o->destroy(at.b);
}

static void finish(void)
{
	struct errmsg err = { "" };

	if (o->sync(at.b, &err))
		fail_msg("%s", err.text);
}

/* sum += 2 * in, partly on another queue; out = sum. */
static void step(void)
{
	o->copy(at.b, QUEUE_COMPUTE, at.x, at.in, N * sizeof(*at.x));
	o->accumulate(at.b, at.x, at.x, N);
	o->event_record(at.b, at.event, QUEUE_COMPUTE);
	o->queue_wait(at.b, QUEUE_COMM, at.event);
	o->copy(at.b, QUEUE_COMM, at.y, at.x, N * sizeof(*at.x));
	o->event_record(at.b, at.back, QUEUE_COMM);
	o->queue_wait(at.b, QUEUE_COMPUTE, at.back);
	o->accumulate(at.b, at.sum, at.y, N);
	o->copy(at.b, QUEUE_COMPUTE, at.out, at.sum, N * sizeof(*at.sum));
}

static void set_in(float by)
{
	for (size_t i = 0; i < N; i++)
		at.in[i] = by * (float)i;
}

static void check_out(float by)
{
	finish();
	for (size_t i = 0; i < N; i++)
		assert_true(at.out[i] == by * (float)i);
}

static void replays_with_what_is_there(void **state)
{
	struct backend_graph *g = NULL;
	struct errmsg err = { "" };

	(void)state;
	begin();
	set_in(1);
	step();
	check_out(2);
	assert_int_equal(o->record_begin(at.b, &err), 0);
	step();
	if (o->record_end(at.b, &g, &err))
		fail_msg("%s", err.text);
	/* Recording executes nothing. */
	check_out(2);
	set_in(10);
	o->replay(at.b, g);
	check_out(22);
	set_in(100);
	o->replay(at.b, g);
	check_out(222);
	/* Run work that is not recorded between replays. */
	step();
	check_out(422);
	o->replay(at.b, g);
	check_out(622);
	o->graph_free(at.b, g);
	end();
}

/* Operations' scratch memory may grow between replays: recorded operations keep theirs. */
static void keeps_its_memory(void **state)
{
	const size_t many = 1 << 18;
	struct backend_graph *g = NULL;
	struct errmsg err = { "" };
	double *sum, got;
	float *big;

	(void)state;
	begin();
	sum = o->alloc(at.b, sizeof(*sum));
	big = o->alloc(at.b, many * sizeof(*big));
	set_in(1);
	step();
	o->sum_squares(at.b, sum, at.x, N);
	assert_int_equal(o->record_begin(at.b, &err), 0);
	o->zero(at.b, sum, sizeof(*sum));
	o->sum_squares(at.b, sum, at.x, N);
	assert_int_equal(o->record_end(at.b, &g, &err), 0);
	o->sum_squares(at.b, sum, big, many);
	o->replay(at.b, g);
	o->to_host(at.b, &got, sum, sizeof(got));
	assert_true(got == 4.0 * (N - 1) * N * (2 * N - 1) / 6);
	o->free(at.b, sum);
	o->free(at.b, big);
	finish();
	o->graph_free(at.b, g);
	end();
}

static void waits(void)
{
	o->sync(at.b, &(struct errmsg){ "" });
}

static void waits_for_an_event(void)
{
	o->event_record(at.b, at.event, QUEUE_COMPUTE);
	o->event_wait(at.b, at.event);
}

static void reads(void)
{
	float x;

	o->to_host(at.b, &x, at.x, sizeof(x));
}

static void writes(void)
{
	const float x = 1;

	o->to_device(at.b, at.x, &x, sizeof(x));
}

static void needs_memory(void)
{
	const size_t many = (size_t)1 << 18;

	o->sum_squares(at.b, (double *)at.sum, at.x, many);
}

static void forgets_another_queue(void)
{
	o->event_record(at.b, at.event, QUEUE_COMPUTE);
	o->queue_wait(at.b, QUEUE_COMM, at.event);
	o->copy(at.b, QUEUE_COMM, at.y, at.x, sizeof(*at.x));
}

static void waits_for_what_is_not_recorded(void)
{
	o->queue_wait(at.b, QUEUE_COMPUTE, at.back);
}

static void refuses(void **state)
{
	static const struct {
		const char *what;
		void (*work)(void);
	} cases[] = {
		{ "a wait for the queue", waits },
		{ "a wait for an event", waits_for_an_event },
		{ "a copy to the host's stack", reads },
		{ "a copy from the host's stack", writes },
		{ "an operation that needs memory", needs_memory },
		{ "another queue that nothing waits for", forgets_another_queue },
		{ "an event from before", waits_for_what_is_not_recorded },
	};

	(void)state;
	begin();
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct backend_graph *g = NULL;
		struct errmsg err = { "" };

		o->event_record(at.b, at.back, QUEUE_COPY);
		assert_int_equal(o->record_begin(at.b, &err), 0);
		o->zero(at.b, at.x, sizeof(*at.x));
		cases[i].work();
		if (!o->record_end(at.b, &g, &err))
			fail_msg("%s was recorded", cases[i].what);
		assert_null(g);
		assert_true(*err.text);
		o->zero(at.b, at.sum, N * sizeof(*at.sum));
		set_in(2);
		step();
		check_out(4);
	}
	end();
}

int main(void)
{
	const struct backend_cuda_options options = { 0 };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replays_with_what_is_there),
		cmocka_unit_test(keeps_its_memory),
		cmocka_unit_test(refuses),
	};
	struct errmsg err = { "" };
	struct backend *b;
	const int rc = backend_cuda_new(&b, DTYPE_F32, &options, &err);

	if (rc == -ENODEV) {
		printf("skipped: %s\n", err.text);
		return 77;
	}
	if (!rc)
		b->ops->destroy(b);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
