/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/convert/treeahead.h"

#include "ckpt/plan/plan.h"
#include "ckpt/vfile/vfile.h"

void treeahead_init(struct treeahead *a, struct plan *p, size_t n,
		    uint64_t (*node)(const void *ctx, size_t i), const void *ctx)
{
	*a = (struct treeahead){ .p = p, .node = node, .ctx = ctx, .n = n };
	pthread_mutex_init(&a->lock, NULL);
}

void treeahead_done(struct treeahead *a)
{
	vfile_free(a->f);
	pthread_mutex_destroy(&a->lock);
}

/* Go on to file i.  Called with the lock held. */
static void go_to(struct treeahead *a, size_t i)
{
	vfile_free(a->f);
	a->f = NULL;
	a->next = i;
	a->done = 0;
}

void treeahead_begin(struct treeahead *a, size_t i)
{
	pthread_mutex_lock(&a->lock);
	if (a->next <= i)
		go_to(a, i + 1);
	pthread_mutex_unlock(&a->lock);
}

/* Want the files that follow, as far as there is memory.  Called with the lock
 * held. */
static void want_next(struct treeahead *a)
{
	while (a->next < a->n) {
		uint64_t size;

		/* Its writer will meet the error. */
		if (!a->f &&
		    plan_file_open(a->p, a->node(a->ctx, a->next), &a->f, NULL))
			a->f = NULL;
		size = a->f ? vfile_size(a->f) : 0;
		if (a->done < size)
			a->done += vfile_want(a->f, a->done, size - a->done,
					      CACHE_LATER);
		if (a->done < size)
			return;
		go_to(a, a->next + 1);
	}
}

void treeahead_at(struct treeahead *a, struct vfile *f, uint64_t off)
{
	const uint64_t left = vfile_size(f) - off, most = cache_window();
	const uint64_t n = left < most ? left : most;

	if (!vfile_is_far(f) || vfile_want(f, off, n, CACHE_NEXT) < n ||
	    n < left)
		return;
	/* One thread is enough. */
	if (pthread_mutex_trylock(&a->lock) == 0) {
		want_next(a);
		pthread_mutex_unlock(&a->lock);
	}
}
