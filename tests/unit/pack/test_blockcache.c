/* SPDX-License-Identifier: Apache-2.0 */
/* A block is decoded once while it is kept; the least recently used goes first;
 * what failed is not kept. */
#include "tests/support/unit.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "ckpt/pack/block.h"
#include "ckpt/pack/blockcache.h"
#include "ckpt/sys/parallel.h"

static atomic_uint fills;
static int result;

static int count_fill(void *ctx, uint8_t *to)
{
	fills++;
	to[0] = *(const uint8_t *)ctx;
	to[BLOCK_SIZE - 1] = to[0];
	return result;
}

static int use(uint64_t pack, uint8_t block)
{
	struct cached_block *b;
	const int rc = blockcache_get((struct blockcache_key){ pack, block },
				      count_fill, &block, &b);

	if (rc)
		return rc;
	assert_int_equal(blockcache_data(b)[0], block);
	assert_int_equal(blockcache_data(b)[BLOCK_SIZE - 1], block);
	blockcache_release(b);
	return 0;
}

static unsigned fills_of(uint64_t pack, uint8_t block)
{
	const unsigned before = fills;

	assert_int_equal(use(pack, block), 0);
	return fills - before;
}

static void the_least_recently_used_goes(void **state)
{
	blockcache_set_limit(3 * BLOCK_SIZE);
	for (uint8_t i = 1; i <= 3; i++)
		assert_int_equal(fills_of(1, i), 1);
	assert_int_equal(fills_of(1, 1), 0);
	assert_int_equal(fills_of(1, 4), 1); /* in place of 2 */
	assert_int_equal(blockcache_bytes(), 3 * BLOCK_SIZE);
	assert_int_equal(fills_of(1, 1), 0);
	assert_int_equal(fills_of(1, 3), 0);
	assert_int_equal(fills_of(1, 2), 1);
	blockcache_drop(1);
	assert_int_equal(blockcache_bytes(), 0);
}

static void packs_do_not_mix(void **state)
{
	assert_int_equal(fills_of(1, 7), 1);
	assert_int_equal(fills_of(2, 7), 1);
	blockcache_drop(1);
	assert_int_equal(fills_of(2, 7), 0);
	assert_int_equal(fills_of(1, 7), 1);
	blockcache_drop(1);
	blockcache_drop(2);
}

static void blocks_in_use_stay(void **state)
{
	uint8_t name = 9;
	struct cached_block *b;

	blockcache_set_limit(BLOCK_SIZE);
	assert_int_equal(blockcache_get((struct blockcache_key){ 1, name },
					count_fill, &name, &b),
			 0);
	for (uint8_t i = 1; i < 5; i++)
		assert_int_equal(use(1, i), 0);
	assert_int_equal(blockcache_data(b)[0], 9);
	blockcache_release(b);
	assert_true(blockcache_bytes() <= BLOCK_SIZE);
	blockcache_drop(1);
}

static void failures_are_not_kept(void **state)
{
	result = -EBADMSG;
	assert_int_equal(use(1, 1), -EBADMSG);
	assert_int_equal(blockcache_bytes(), 0);
	assert_null(blockcache_find((struct blockcache_key){ 1, 1 }));
	result = 0;
	assert_int_equal(fills_of(1, 1), 1);
	blockcache_drop(1);
}

static int slow_fill(void *ctx, uint8_t *to)
{
	usleep(20000);
	return count_fill(ctx, to);
}

static int want(void *ctx, size_t i, struct errmsg *err)
{
	uint8_t block = 5;
	struct cached_block *b;
	const int rc = blockcache_get((struct blockcache_key){ 1, block },
				      slow_fill, &block, &b);

	(void)ctx, (void)i, (void)err;
	if (!rc)
		blockcache_release(b);
	return rc;
}

static void one_of_many_decodes(void **state)
{
	const unsigned before = fills;

	blockcache_set_limit(blockcache_default());
	assert_int_equal(parallel_for(8, 8, want, NULL, NULL), 0);
	assert_int_equal(fills, before + 1);
	blockcache_drop(1);
	result = -EIO;
	assert_int_equal(parallel_for(8, 8, want, NULL, NULL), -EIO);
	result = 0;
	assert_int_equal(blockcache_bytes(), 0);
}

static int claim_and_fill(void *ctx, size_t i, struct errmsg *err)
{
	uint8_t block = 5;
	struct cached_block *const b =
		blockcache_claim((struct blockcache_key){ 1, block });

	if (!b)
		return want(ctx, i, err);
	usleep(20000); /* as when it is fetched */
	if (blockcache_fill_claimed(b, count_fill, &block))
		return result;
	blockcache_release(b);
	return 0;
}

static void others_wait_for_a_claimed_block(void **state)
{
	const unsigned before = fills;

	assert_int_equal(parallel_for(8, 8, claim_and_fill, NULL, NULL), 0);
	assert_int_equal(fills, before + 1);
	assert_null(blockcache_claim((struct blockcache_key){ 1, 5 }));
	blockcache_drop(1);
	result = -EIO;
	assert_int_equal(parallel_for(8, 8, claim_and_fill, NULL, NULL), -EIO);
	result = 0;
	assert_int_equal(blockcache_bytes(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_least_recently_used_goes),
		cmocka_unit_test(packs_do_not_mix),
		cmocka_unit_test(blocks_in_use_stay),
		cmocka_unit_test(failures_are_not_kept),
		cmocka_unit_test(one_of_many_decodes),
		cmocka_unit_test(others_wait_for_a_claimed_block),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
