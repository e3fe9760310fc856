/* SPDX-License-Identifier: Apache-2.0 */
/* An MPI library without thread support is refused. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/comm.h"
#include "tests/support/unit.h"

/* Replaces the library's function. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	(void)argc;
	(void)argv;
	assert_int_equal(required, MPI_THREAD_FUNNELED);
	*provided = MPI_THREAD_SINGLE;
	return MPI_SUCCESS;
}

static void the_level_of_threads_is_checked(void **state)
{
	struct errmsg err = { "" };
	struct comm comm;

	setenv("PMIX_RANK", "0", 1);
	assert_int_equal(comm_init(&comm, NULL, NULL, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "MPI_THREAD_FUNNELED"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_level_of_threads_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
