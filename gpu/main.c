/* SPDX-License-Identifier: Apache-2.0 */
/* uctrain: every rank parses the same command line; rank 0 prints the
 * messages. */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/site.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/train/stop.h"
#include "gpu/train/train.h"

enum { EXIT_USAGE = 2 };

static int main_run(struct comm *comm, int argc, char **argv)
{
	struct config c;
	struct errmsg err = { "" };
	int rc = config_parse(&c, argc, argv, comm->size, comm->rank == 0, &err);
	const int failed = rc ? EXIT_USAGE : EXIT_FAILURE;

	for (int i = 1; i < argc; i++) /* other users see the command line */
		site_hide_secrets(argv[i]);
	if (rc == 1)
		return EXIT_SUCCESS;
	if (!rc) {
		rc = train_run(&c, comm, &err);
		config_done(&c);
	}
	if (rc && comm->rank == 0)
		fprintf(stderr, "uctrain: %s\n", err.text);
	return rc ? failed : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct comm comm;
	struct errmsg err = { "" };
	int status;

	if (comm_init(&comm, &argc, &argv, &err)) {
		fprintf(stderr, "uctrain: %s\n", err.text);
		return EXIT_FAILURE;
	}
	stop_on_signals();
	status = main_run(&comm, argc, argv);
	comm_done(&comm);
	return status;
}
