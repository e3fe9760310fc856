/* SPDX-License-Identifier: Apache-2.0 */
/* uctrain. */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/comm.h"
#include "gpu/train/command.h"
#include "gpu/watch/watch.h"

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
	status = train_command(&comm, argc, argv);
	comm_done(&comm);
	return status;
}
