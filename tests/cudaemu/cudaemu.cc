/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a block as coroutines: see cudaemu.h. */
#include "cudaemu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define THREADS_MAX 1024
#define WARPS_MAX (THREADS_MAX / CUDAEMU_WARP)
#define STACK_BYTES ((size_t)256 << 10)
/* Stacks begin at different addresses modulo the size of a cache's way: otherwise those of a
 * block evict each other. */
#define STACK_SHIFTS 64
#define STACK_SHIFT ((size_t)1088)

struct cudaemu_dim cudaemu_thread, cudaemu_block;
struct cudaemu_dim cudaemu_block_dim, cudaemu_grid_dim;

enum state { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, HAS_ENDED };

#define COPIES_MAX 256
#define STATICS_MAX 8
#define KERNELS_MAX 256
#define SHARED_UNASKED ((size_t)48 << 10)

/* A pending copy of a thread. */
struct copy {
	void *to;
	const void *from; /* NULL: zeros */
	unsigned group;
};

struct coroutine {
#if defined(__x86_64__)
	void *sp;
#else
	ucontext_t context;
#endif
	void *fake_stack; /* ASan's */
	char *stack;
	struct cudaemu_dim position; /* in its block */
	unsigned turn;               /* parity of cudaemu_exchange */
	const char *operation;
	struct copy copies[COPIES_MAX];
	unsigned ncopies, group;
};

struct warp {
	unsigned waiting, alive;
	char given[2][CUDAEMU_WARP * CUDAEMU_EXCHANGE];
};

static struct coroutine threads[THREADS_MAX], caller;
/* Of the threads; together, since whoever waits looks for one that runs. */
static enum state states[THREADS_MAX];
static struct warp warps[WARPS_MAX];
static unsigned nthreads, current, waiting, alive;
static bool reversed;
static void *shared;
static size_t shared_bytes; /* static and dynamic */
/* What has been counted of the static memory, and what the kernel has asked for. */
static const void *counted[STATICS_MAX];
static unsigned ncounted;
static size_t asked_for;
size_t cudaemu_shared_limit = (size_t)163 << 10; /* of an A100 */
static void (*thread_body)(void *arg);
static void *thread_arg;

static void die(const char *what)
{
	fprintf(stderr, "cudaemu: block %u,%u,%u, thread %u: %s\n", cudaemu_block.x,
		cudaemu_block.y, cudaemu_block.z, current, what);
	abort();
}

/* --- switching -------------------------------------------------------------- */

#if defined(__x86_64__)
extern "C" void cudaemu_switch(void **from, void *to);
asm(".text\n"
    ".globl cudaemu_switch\n"
    ".type cudaemu_switch, @function\n"
    "cudaemu_switch:\n"
    "	pushq %rbp\n"
    "	pushq %rbx\n"
    "	pushq %r12\n"
    "	pushq %r13\n"
    "	pushq %r14\n"
    "	pushq %r15\n"
    "	movq %rsp, (%rdi)\n"
    "	movq %rsi, %rsp\n"
    "	popq %r15\n"
    "	popq %r14\n"
    "	popq %r13\n"
    "	popq %r12\n"
    "	popq %rbx\n"
    "	popq %rbp\n"
    "	ret\n"
    ".size cudaemu_switch, .-cudaemu_switch\n");
#endif

static void switch_stacks(struct coroutine *from, struct coroutine *to)
{
#if defined(__x86_64__)
	cudaemu_switch(&from->sp, to->sp);
#else
	swapcontext(&from->context, &to->context);
#endif
}

#if defined(__SANITIZE_ADDRESS__)
static const void *caller_stack;
static size_t caller_stack_len;

static void switch_to(struct coroutine *from, struct coroutine *to)
{
	/* A finished thread's stack can be reused. */
	__sanitizer_start_switch_fiber(
		from != &caller && states[from - threads] == HAS_ENDED ? NULL : &from->fake_stack,
		to == &caller ? caller_stack : to->stack,
		to == &caller ? caller_stack_len : STACK_BYTES);
	switch_stacks(from, to);
	__sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
}

/* A thread's first switch ends here. */
static void has_begun(void)
{
	const void *from;
	size_t len;

	__sanitizer_finish_switch_fiber(NULL, &from, &len);
	if (!caller_stack) {
		caller_stack = from;
		caller_stack_len = len;
	}
}

static void forget_caller(void)
{
	caller_stack = NULL;
}

/* A finished thread left thread_main's frame unchanged. */
static void forget_frames(char *top)
{
	__asan_unpoison_memory_region(top - 4096, 4096);
}
#else
static void switch_to(struct coroutine *from, struct coroutine *to)
{
	switch_stacks(from, to);
}

static void has_begun(void)
{
}

static void forget_caller(void)
{
}

static void forget_frames(char *)
{
}
#endif

static void set_thread(unsigned i)
{
	current = i;
	cudaemu_thread = threads[i].position;
}

static unsigned next_of(unsigned i)
{
	if (reversed)
		return i ? i - 1 : nthreads - 1;
	return i + 1 < nthreads ? i + 1 : 0;
}

/* Switch to the next runnable thread. */
static void run_next(void)
{
	const unsigned me = current;
	unsigned i = me;

	do {
		i = next_of(i);
		if (states[i] == RUNS) {
			set_thread(i);
			if (i != me)
				switch_to(&threads[me], &threads[i]);
			return;
		}
	} while (i != me);
	if (alive)
		die("waits, and no other thread can go on");
	switch_to(&threads[me], &caller);
}

static void release_block(void)
{
	if (!alive || waiting < alive)
		return;
	waiting = 0;
	for (unsigned i = 0; i < nthreads; i++)
		if (states[i] == WAITS_FOR_BLOCK)
			states[i] = RUNS;
}

static bool same(const char *operation, const char *other)
{
	return operation == other || strcmp(operation, other) == 0;
}

static void release_warp(unsigned w)
{
	const unsigned first = w * CUDAEMU_WARP;

	if (!warps[w].alive || warps[w].waiting < warps[w].alive)
		return;
	warps[w].waiting = 0;
	for (unsigned i = first; i < first + CUDAEMU_WARP; i++) {
		if (states[i] != WAITS_FOR_WARP)
			continue;
		if (!same(threads[i].operation, threads[current].operation))
			die("lanes of a warp meet in different operations");
		states[i] = RUNS;
	}
}

static void thread_main(void)
{
	has_begun();
	thread_body(thread_arg);
	states[current] = HAS_ENDED;
	threads[current].operation = "the end";
	alive--;
	warps[current / CUDAEMU_WARP].alive--;
	release_block();
	release_warp(current / CUDAEMU_WARP);
	run_next();
	die("goes on after its end");
}

static void prepare(struct coroutine *c)
{
	char *end;

	if (!c->stack) {
		c->stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (c->stack == MAP_FAILED)
			die("no memory for its stack");
	}
	end = c->stack + STACK_BYTES - (c - threads) % STACK_SHIFTS * STACK_SHIFT;
	forget_frames(end);
	c->turn = 0;
	c->ncopies = c->group = 0;
	c->fake_stack = NULL;
#if defined(__x86_64__)
	/* Six registers, the entry address, and no return address. */
	void **const top = (void **)end - 8;

	memset(top, 0, 8 * sizeof(*top));
	top[6] = (void *)thread_main;
	c->sp = top;
#else
	getcontext(&c->context);
	c->context.uc_stack.ss_sp = c->stack;
	c->context.uc_stack.ss_size = (size_t)(end - c->stack);
	c->context.uc_link = NULL;
	makecontext(&c->context, thread_main, 0);
#endif
}

/* --- blocks ----------------------------------------------------------------- */

static void run_block(void)
{
	const unsigned nwarps = (nthreads + CUDAEMU_WARP - 1) / CUDAEMU_WARP;
	const struct cudaemu_dim d = cudaemu_block_dim;

	for (unsigned i = 0; i < nthreads; i++) {
		prepare(&threads[i]);
		states[i] = RUNS;
		threads[i].position = (struct cudaemu_dim){ i % d.x, i / d.x % d.y, i / d.x / d.y };
	}
	for (unsigned w = 0; w < nwarps; w++) {
		const unsigned left = nthreads - w * CUDAEMU_WARP;

		warps[w].waiting = 0;
		warps[w].alive = left < CUDAEMU_WARP ? left : CUDAEMU_WARP;
	}
	waiting = 0;
	alive = nthreads;
	forget_caller();
	set_thread(reversed ? nthreads - 1 : 0);
	switch_to(&caller, &threads[current]);
}

/* Kernels that have asked for dynamic shared memory. */
static struct {
	const void *kernel;
	size_t bytes;
} askers[KERNELS_MAX];

void cudaemu_allow_shared(const void *kernel, size_t bytes)
{
	unsigned i = 0;

	while (askers[i].kernel && askers[i].kernel != kernel)
		if (++i == KERNELS_MAX)
			die("too many kernels ask for shared memory");
	askers[i].kernel = kernel;
	askers[i].bytes = bytes;
}

static size_t asked_by(const void *kernel)
{
	for (unsigned i = 0; i < KERNELS_MAX; i++)
		if (askers[i].kernel == kernel)
			return askers[i].bytes;
	return 0;
}

static void take_shared(size_t bytes)
{
	shared_bytes += bytes;
	if (shared_bytes > cudaemu_shared_limit)
		die("a block has less shared memory");
	if (shared_bytes > SHARED_UNASKED && !asked_for)
		die("has not asked for so much shared memory");
}

void cudaemu_has_shared(const void *p, size_t bytes)
{
	for (unsigned i = 0; i < ncounted; i++)
		if (counted[i] == p)
			return;
	if (ncounted == STATICS_MAX)
		die("has too many pieces of shared memory");
	counted[ncounted++] = p;
	take_shared(bytes);
}

void cudaemu_run(const void *kernel, struct cudaemu_dim grid, struct cudaemu_dim block,
		 size_t bytes, void (*body)(void *arg), void *arg)
{
	struct cudaemu_dim at = { 0, 0, 0 };

	nthreads = block.x * block.y * block.z;
	if (nthreads == 0 || nthreads > THREADS_MAX || nthreads % CUDAEMU_WARP ||
	    grid.x * grid.y * grid.z == 0)
		die("such a grid cannot be launched");
	ncounted = 0;
	shared_bytes = 0;
	asked_for = asked_by(kernel);
	if (asked_for && bytes > asked_for)
		die("has not asked for so much shared memory");
	take_shared(bytes);
	cudaemu_traffic.launches++;
	cudaemu_grid_dim = grid;
	cudaemu_block_dim = block;
	thread_body = body;
	thread_arg = arg;
	if (posix_memalign(&shared, 128, bytes ? bytes : 1))
		die("no shared memory");
	for (at.z = 0; at.z < grid.z; at.z++)
		for (at.y = 0; at.y < grid.y; at.y++)
			for (at.x = 0; at.x < grid.x; at.x++) {
				cudaemu_block = at;
				memset(shared, 0xff, bytes);
				run_block();
			}
	free(shared);
	shared = NULL;
}

void *cudaemu_shared(void)
{
	return shared;
}

void cudaemu_reverse(bool reverse)
{
	reversed = reverse;
}

/* --- meeting ---------------------------------------------------------------- */

void cudaemu_syncthreads(void)
{
	states[current] = WAITS_FOR_BLOCK;
	waiting++;
	release_block();
	if (states[current] != RUNS)
		run_next();
}

unsigned cudaemu_lane(void)
{
	return current % CUDAEMU_WARP;
}

const char *cudaemu_exchange(const char *operation, const void *mine, size_t size)
{
	struct coroutine *const me = &threads[current];
	const unsigned w = current / CUDAEMU_WARP;
	char *const given = warps[w].given[me->turn++ % 2];

	if (size > CUDAEMU_EXCHANGE)
		die("gives too much to its warp");
	memcpy(given + cudaemu_lane() * CUDAEMU_EXCHANGE, mine, size);
	me->operation = operation;
	states[current] = WAITS_FOR_WARP;
	warps[w].waiting++;
	release_warp(w);
	if (states[current] != RUNS)
		run_next();
	return given;
}

/* --- copies ----------------------------------------------------------------- */

void cudaemu_copy_later(void *to, const void *from, bool there)
{
	struct coroutine *const me = &threads[current];

	if ((uintptr_t)to % 16 || (uintptr_t)from % 16)
		die("copies 16 bytes that are not aligned");
	if (me->ncopies == COPIES_MAX)
		die("copies too much at once");
	me->copies[me->ncopies++] = (struct copy){ to, there ? from : NULL, me->group };
}

void cudaemu_end_group(void)
{
	threads[current].group++;
}

void cudaemu_wait_group(unsigned left)
{
	struct coroutine *const me = &threads[current];
	unsigned kept = 0;

	for (unsigned i = 0; i < me->ncopies; i++) {
		const struct copy *const c = &me->copies[i];

		if (c->group + left >= me->group)
			me->copies[kept++] = *c;
		else if (c->from)
			memcpy(c->to, c->from, 16);
		else
			memset(c->to, 0, 16);
	}
	me->ncopies = kept;
}
