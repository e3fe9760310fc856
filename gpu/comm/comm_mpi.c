/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks by MPI.
 *
 * Floats are summed here, since the order of MPI's reductions is unspecified and may depend on the
 * length.  Every rank sends each other rank its part, and adds up what it receives in rank order,
 * in double precision.  This moves no more bytes than the best reduce-scatter, and the result
 * depends on the values only, so that ZeRO stages, which partition the same sum differently, agree
 * to the last bit.
 *
 * Messages are sent in windows, which bounds the receive buffer and keeps counts within MPI's
 * int.
 *
 * MPI's errors are fatal (MPI_ERRORS_ARE_FATAL, its default), and mpirun ends all ranks when one
 * exits without MPI_Finalize.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/format/cast.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/pieces.h"
#include "gpu/watch/watch.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
/* Do not report Open MPI's leaks as ours. tests/mpi.supp suppresses leaks in its threads by the
 * names of its plugins, which are lost when a plugin is closed: override dlclose.  Leaks elsewhere
 * are not checked. */
int dlclose(void *handle) __attribute__((visibility("default")));
int dlclose(void *handle)
{
	(void)handle;
	return 0;
}
#define NOT_OUR_LEAKS(call) (__lsan_disable(), (void)(call), __lsan_enable())
#else
#define NOT_OUR_LEAKS(call) (void)(call)
#endif

#define WINDOW_BYTES ((size_t)16 << 20) /* received at once, from all ranks together */
#define SUMS_BYTES (WINDOW_BYTES / 2 / sizeof(float) * sizeof(double)) /* elements of two ranks */
/* The longest message; tests define a shorter one. */
#ifndef MESSAGE_BYTES
#define MESSAGE_BYTES ((size_t)1 << 30)
#endif

/* Open MPI 4 and 5. */
#define LIBRARY "libmpi.so.40"

/* The functions of Open MPI that we use.  It is loaded only if a launcher started the process: a
 * single rank runs without it. */
#define MPI_CALLS(X)           \
	X(MPI_Abort)           \
	X(MPI_Allgather)       \
	X(MPI_Allreduce)       \
	X(MPI_Bcast)           \
	X(MPI_Comm_free)       \
	X(MPI_Comm_rank)       \
	X(MPI_Comm_size)       \
	X(MPI_Comm_split)      \
	X(MPI_Comm_split_type) \
	X(MPI_Finalize)        \
	X(MPI_Init_thread)     \
	X(MPI_Irecv)           \
	X(MPI_Isend)           \
	X(MPI_Waitall)

/* Open MPI's objects: the member, its type, and the variable behind MPI's name. */
#define MPI_OBJECTS(X)                                \
	X(world, MPI_Comm, ompi_mpi_comm_world)       \
	X(no_info, MPI_Info, ompi_mpi_info_null)      \
	X(bytes, MPI_Datatype, ompi_mpi_byte)         \
	X(ints, MPI_Datatype, ompi_mpi_int)           \
	X(unsigneds, MPI_Datatype, ompi_mpi_unsigned) \
	X(doubles, MPI_Datatype, ompi_mpi_double)     \
	X(sum, MPI_Op, ompi_mpi_op_sum)               \
	X(min, MPI_Op, ompi_mpi_op_min)

#define MPI_MEMBER(member, type, variable) type member;
static struct mpi_api {
	MPI_CALLS(DYNLIB_MEMBER)
	MPI_OBJECTS(MPI_MEMBER)
} api;
static const struct mpi_api *mpi; /* NULL: one rank alone */

#define OBJECT(member, type, variable) { DYNLIB_TEXT(variable), (void **)&api.member },

/* Load Open MPI once.  Its symbols must be global, since its plugins need them; symbols that the
 * program defines itself, as a test does, take precedence. */
static int load_mpi(struct errmsg *err)
{
	const struct dynlib_call all[] = { MPI_CALLS(DYNLIB_CALL) MPI_OBJECTS(OBJECT) };
	bool found = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL) != NULL;

	for (size_t i = 0; found && i < COUNT(all); i++)
		found = (*all[i].at = dlsym(RTLD_DEFAULT, all[i].name)) != NULL;
	if (!found)
		return errmsg_set(err, -ENOENT, "this rank needs Open MPI: %s", dlerror());
	mpi = &api;
	return 0;
}

struct comm_impl {
	MPI_Comm ranks;
	uint8_t *window; /* WINDOW_BYTES; groups borrow the world's */
	double *sums;    /* of a window; borrowed likewise */
	bool borrows;
	MPI_Request *request; /* 2 * size requests */
	size_t *lengths;      /* size entries */
};

/* Was this process started by a launcher that speaks PMI? MPI_Init of a process without one would
 * start a daemon. */
static bool started_by_mpirun(void)
{
	static const char *const marks[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK" };

	for (size_t i = 0; i < COUNT(marks); i++)
		if (getenv(marks[i]))
			return true;
	return false;
}

static void find_neighbours(struct comm *c)
{
	MPI_Comm local;
	int rank, n;

	mpi->MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, 0, mpi->no_info, &local);
	mpi->MPI_Comm_rank(local, &rank);
	mpi->MPI_Comm_size(local, &n);
	c->node = c->rank;
	mpi->MPI_Bcast(&c->node, 1, mpi->unsigneds, 0, local);
	mpi->MPI_Comm_free(&local);
	c->local_rank = (unsigned)rank;
	c->local_size = (unsigned)n;
}

static void impl_free(struct comm_impl *m)
{
	if (!m)
		return;
	if (!m->borrows) {
		free(m->window);
		free(m->sums);
	}
	free(m->request);
	free(m->lengths);
	free(m);
}

/* The most elements of `size` bytes that each rank sends in one window. */
static size_t window_share(const struct comm *c, size_t size)
{
	const size_t share = WINDOW_BYTES / c->size / size;

	return share ? share : 1;
}

/* `all` owns the windows; if NULL, allocate them. */
static struct comm_impl *impl_new(const struct comm *c, MPI_Comm ranks, const struct comm_impl *all)
{
	struct comm_impl *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->ranks = ranks;
	m->borrows = all;
	m->window = all ? all->window : malloc(WINDOW_BYTES);
	m->sums = all ? all->sums : malloc(SUMS_BYTES);
	m->request = malloc(2 * c->size * sizeof(*m->request));
	m->lengths = malloc(c->size * sizeof(*m->lengths));
	if (m->window && m->sums && m->request && m->lengths)
		return m;
	impl_free(m);
	return NULL;
}

int comm_init(struct comm *c, int *argc, char ***argv, struct errmsg *err)
{
	int rank, size, level = MPI_THREAD_SINGLE, rc;

	*c = (struct comm){ .size = 1, .local_size = 1 };
	if (!started_by_mpirun())
		return 0;
	rc = load_mpi(err);
	if (rc)
		return rc;
	/* Threads of the backend never call MPI. */
	NOT_OUR_LEAKS(mpi->MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level));
	if (level < MPI_THREAD_FUNNELED)
		return errmsg_set(err, -ENOTSUP,
				  "MPI: allows a process no threads (MPI_THREAD_FUNNELED)");
	mpi->MPI_Comm_rank(mpi->world, &rank);
	mpi->MPI_Comm_size(mpi->world, &size);
	c->rank = (unsigned)rank;
	c->size = (unsigned)size;
	find_neighbours(c);
	c->impl = impl_new(c, mpi->world, NULL);
	return c->impl ? 0 : errmsg_nomem(err, NULL);
}

int comm_split(struct comm *out, struct comm *c, unsigned group, struct errmsg *err)
{
	MPI_Comm ranks;
	int rank, size, rc = 0;

	*out = *c;
	out->impl = NULL;
	if (!c->impl)
		return 0;
	watch_begin("the forming of groups");
	mpi->MPI_Comm_split(c->impl->ranks, (int)group, (int)c->rank, &ranks);
	watch_end();
	mpi->MPI_Comm_rank(ranks, &rank);
	mpi->MPI_Comm_size(ranks, &size);
	out->rank = (unsigned)rank;
	out->size = (unsigned)size;
	if (size == 1) {
		mpi->MPI_Comm_free(&ranks);
	} else if (!(out->impl = impl_new(out, ranks, c->impl))) {
		mpi->MPI_Comm_free(&ranks);
		rc = errmsg_nomem(err, NULL);
	}
	rc = comm_agree(c, rc, err);
	if (rc)
		comm_join(out);
	return rc;
}

void comm_join(struct comm *c)
{
	if (!c->impl)
		return;
	mpi->MPI_Comm_free(&c->impl->ranks);
	impl_free(c->impl);
	c->impl = NULL;
}

void comm_done(struct comm *c)
{
	impl_free(c->impl);
	c->impl = NULL;
	if (mpi)
		NOT_OUR_LEAKS(mpi->MPI_Finalize());
}

void comm_abort(struct comm *c, const struct errmsg *why)
{
	int rank = (int)c->rank;

	if (c->impl)
		mpi->MPI_Comm_rank(mpi->world, &rank);
	fprintf(stderr, "uctrain: rank %d: %s\n", rank, why->text);
	if (c->impl)
		mpi->MPI_Abort(mpi->world, EXIT_FAILURE);
	exit(EXIT_FAILURE);
}

/* Broadcast the message of rank `first`. */
static int tell(struct comm *c, int first, int rc, struct errmsg *err)
{
	struct {
		int rc;
		struct errmsg err;
	} agreed = { .rc = rc };
	int failed = rc != 0;

	mpi->MPI_Allreduce(MPI_IN_PLACE, &failed, 1, mpi->ints, mpi->sum, c->impl->ranks);
	if (err && rc && failed == (int)c->size)
		agreed.err = *err;
	else if (err && rc)
		errmsg_set(&agreed.err, rc, "rank %u: %s", c->rank, err->text);
	mpi->MPI_Bcast(&agreed, sizeof(agreed), mpi->bytes, first, c->impl->ranks);
	if (err)
		*err = agreed.err;
	return agreed.rc;
}

int comm_agree(struct comm *c, int rc, struct errmsg *err)
{
	int first = rc ? (int)c->rank : (int)c->size;

	assert(rc <= 0);
	if (!c->impl)
		return rc;
	watch_begin("an agreement of all ranks");
	mpi->MPI_Allreduce(MPI_IN_PLACE, &first, 1, mpi->ints, mpi->min, c->impl->ranks);
	if (first < (int)c->size)
		rc = tell(c, first, rc, err);
	watch_end();
	return rc;
}

void comm_broadcast(struct comm *c, void *p, size_t bytes, unsigned root)
{
	uint8_t *at = p;

	assert(root < c->size);
	if (!c->impl)
		return;
	watch_begin("a broadcast");
	while (bytes) {
		const size_t n = bytes < MESSAGE_BYTES ? bytes : MESSAGE_BYTES;

		mpi->MPI_Bcast(at, (int)n, mpi->bytes, (int)root, c->impl->ranks);
		at += n;
		bytes -= n;
	}
	watch_end();
}

/* x[i] = the sum, or the maximum, over all ranks, in their order. */
static void fold_window(struct comm *c, double *x, int n, bool max)
{
	double *all = (double *)c->impl->window;

	mpi->MPI_Allgather(x, n, mpi->doubles, all, n, mpi->doubles, c->impl->ranks);
	for (int i = 0; i < n; i++) {
		x[i] = all[i];
		for (unsigned r = 1; r < c->size; r++) {
			const double y = all[r * (unsigned)n + (unsigned)i];

			x[i] = !max ? x[i] + y : x[i] > y ? x[i] : y;
		}
	}
}

static void fold_doubles(struct comm *c, double *x, size_t n, bool max)
{
	if (!c->impl)
		return;

	const size_t most = window_share(c, sizeof(*x));

	watch_begin("an exchange of numbers");
	for (size_t i = 0; i < n; i += most)
		fold_window(c, x + i, (int)pieces_within(n, i, most), max);
	watch_end();
}

void comm_sum_double(struct comm *c, double *x, size_t n)
{
	fold_doubles(c, x, n, false);
}

void comm_max_double(struct comm *c, double *x, size_t n)
{
	fold_doubles(c, x, n, true);
}

/* sums = n elements, or with `add`, sums += n elements. */
static void add_elements(double *sums, enum dtype dtype, const void *from, size_t n, bool add)
{
	const uint8_t *const p = from;
	double some[CAST_BATCH];

	for (size_t at = 0; at < n; at += CAST_BATCH) {
		const size_t len = pieces_within(n, at, CAST_BATCH);

		cast_to_double(dtype, p + at * dtype_size(dtype), some, len);
		for (size_t i = 0; i < len; i++)
			sums[at + i] = (add ? sums[at + i] : 0.0) + some[i];
	}
}

/* The float32 case, which needs no conversion. */
static void add_floats(double *sums, const float *x, size_t n, bool add)
{
	for (size_t i = 0; i < n; i++)
		sums[i] = (add ? sums[i] : 0.0) + (double)x[i];
}

static void round_sums(const double *sums, size_t n, enum dtype dtype, void *out)
{
	uint8_t *const to = out;
	float some[CAST_BATCH];

	for (size_t at = 0; at < n; at += CAST_BATCH) {
		const size_t len = pieces_within(n, at, CAST_BATCH);

		for (size_t i = 0; i < len; i++)
			some[i] = (float)sums[at + i];
		cast_from_float(dtype, some, to + at * dtype_size(dtype), len);
	}
}

/* Sum the `n` elements received from each rank and this rank's, in rank order. */
static void sum_window(struct comm *c, const void *own, size_t share, size_t n, enum dtype dtype,
		       void *out)
{
	const size_t size = dtype_size(dtype);
	double *const sums = c->impl->sums;

	assert(n <= share);
	for (unsigned r = 0; r < c->size; r++) {
		const void *const x = r == c->rank ? own : c->impl->window + r * share * size;

		if (dtype == DTYPE_F32)
			add_floats(sums, x, n, r > 0);
		else
			add_elements(sums, dtype, x, n, r > 0);
	}
	round_sums(sums, n, dtype, out);
}

/* Start receiving `nin` bytes from a rank and sending it `nout`; for 0 there is no message.
 * Returns the number of requests. */
static int post(struct comm *c, unsigned peer, void *in, size_t nin, const void *out, size_t nout,
		MPI_Request *request)
{
	int n = 0;

	if (nin)
		mpi->MPI_Irecv(in, (int)nin, mpi->bytes, (int)peer, 0, c->impl->ranks,
			       &request[n++]);
	if (nout)
		mpi->MPI_Isend(out, (int)nout, mpi->bytes, (int)peer, 0, c->impl->ranks,
			       &request[n++]);
	return n;
}

void comm_reduce_scatter(struct comm *c, const void *parts, const size_t *n, enum dtype dtype,
			 void *mine)
{
	const size_t size = dtype_size(dtype);
	const uint8_t *const own = (const uint8_t *)parts + pieces_start(n, c->rank) * size;

	if (!c->impl) {
		memmove(mine, own, n[0] * size);
		return;
	}

	const size_t share = window_share(c, sizeof(float));
	const size_t most = pieces_longest(n, c->size);
	uint8_t *const window = c->impl->window;

	watch_begin("a reduce-scatter");
	for (size_t at = 0; at < most; at += share) {
		const size_t my = pieces_within(n[c->rank], at, share);
		const uint8_t *part = parts;
		int wait = 0;

		for (unsigned r = 0; r < c->size; part += n[r] * size, r++) {
			const size_t their = pieces_within(n[r], at, share);

			if (r != c->rank)
				wait += post(c, r, window + r * share * size, my * size,
					     part + at * size, their * size,
					     c->impl->request + wait);
		}
		mpi->MPI_Waitall(wait, c->impl->request, MPI_STATUSES_IGNORE);
		sum_window(c, own + at * size, share, my, dtype, (uint8_t *)mine + at * size);
	}
	watch_end();
}

void comm_all_gather(struct comm *c, const void *mine, const size_t *bytes, void *all)
{
	uint8_t *own = (uint8_t *)all + pieces_start(bytes, c->rank);

	if (own != mine)
		memmove(own, mine, bytes[c->rank]);
	if (!c->impl)
		return;

	const size_t share = window_share(c, 1);
	const size_t most = pieces_longest(bytes, c->size);

	watch_begin("an all-gather");
	for (size_t at = 0; at < most; at += share) {
		const size_t my = pieces_within(bytes[c->rank], at, share);
		uint8_t *part = all;
		int wait = 0;

		for (unsigned r = 0; r < c->size; part += bytes[r], r++) {
			const size_t their = pieces_within(bytes[r], at, share);

			if (r != c->rank)
				wait += post(c, r, part + at, their, own + at, my,
					     c->impl->request + wait);
		}
		mpi->MPI_Waitall(wait, c->impl->request, MPI_STATUSES_IGNORE);
	}
	watch_end();
}

void comm_sum(struct comm *c, void *x, size_t n, enum dtype dtype)
{
	uint8_t *mine = x;

	if (!c->impl)
		return;

	size_t *const part = c->impl->lengths;

	for (unsigned r = 0; r < c->size; r++)
		part[r] = n / c->size + (r < n % c->size);
	mine += pieces_start(part, c->rank) * dtype_size(dtype);
	watch_begin("an all-reduce");
	comm_reduce_scatter(c, x, part, dtype, mine);
	for (unsigned r = 0; r < c->size; r++)
		part[r] *= dtype_size(dtype);
	comm_all_gather(c, mine, part, x);
	watch_end();
}

void comm_all_to_all(struct comm *c, const void *out, void *in, size_t bytes)
{
	const uint8_t *const from = out;
	uint8_t *const to = in;

	memcpy(to + c->rank * bytes, from + c->rank * bytes, bytes);
	if (!c->impl)
		return;
	watch_begin("an all-to-all");
	for (size_t at = 0; at < bytes; at += MESSAGE_BYTES) {
		const size_t n = pieces_within(bytes, at, MESSAGE_BYTES);
		int wait = 0;

		for (unsigned r = 0; r < c->size; r++)
			if (r != c->rank)
				wait += post(c, r, to + r * bytes + at, n, from + r * bytes + at, n,
					     c->impl->request + wait);
		mpi->MPI_Waitall(wait, c->impl->request, MPI_STATUSES_IGNORE);
	}
	watch_end();
}

void comm_exchange(struct comm *c, unsigned peer, const void *out, void *in, size_t bytes)
{
	const uint8_t *from = out;
	uint8_t *to = in;
	const size_t most = 2 * (bytes / MESSAGE_BYTES + 1);
	MPI_Request *const request = malloc(most * sizeof(*request));
	int wait = 0;

	assert(c->impl && peer < c->size);
	if (!request)
		comm_abort(c, &(struct errmsg){ "out of memory" });
	watch_begin("an exchange with a neighbour");
	/* Start all messages before waiting: the peer may send all of its messages in one call and
	 * receive these in the next. */
	for (size_t at = 0; at < bytes; at += MESSAGE_BYTES) {
		const size_t n = pieces_within(bytes, at, MESSAGE_BYTES);

		wait += post(c, peer, to ? to + at : NULL, to ? n : 0, from ? from + at : NULL,
			     from ? n : 0, request + wait);
	}
	mpi->MPI_Waitall(wait, request, MPI_STATUSES_IGNORE);
	watch_end();
	free(request);
}
