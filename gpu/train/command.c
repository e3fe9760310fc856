/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/train/command.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/site.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/train/train_impl.h"

enum { EXIT_USAGE = 2 };

/* Parse the command line, which all ranks must have been given alike: returns as config_parse,
 * the same on all ranks. */
static int parse(struct config *c, struct comm *comm, int argc, char **argv, struct errmsg *err)
{
	const int parsed = config_parse(c, argc, argv, comm->size, comm->rank == 0, err);
	const uint64_t mine = parsed ? (uint64_t)parsed : config_digest(c);
	uint64_t first = mine;
	int rc = comm_agree(comm, parsed < 0 ? parsed : 0, err);

	if (!rc) {
		comm_broadcast(comm, &first, sizeof(first), 0);
		rc = first == mine ? 0
				   : errmsg_set(err, -EINVAL, "was given other flags than rank 0");
		rc = comm_agree(comm, rc, err);
	}
	if (rc && !parsed)
		config_done(c);
	return rc ? rc : parsed;
}

int train_command(struct comm *comm, int argc, char **argv)
{
	struct config c;
	struct errmsg err = { "" };
	int rc = parse(&c, comm, argc, argv, &err);
	const int failed = rc ? EXIT_USAGE : EXIT_FAILURE;

	for (int i = 1; i < argc; i++) /* other users see the command line */
		site_hide_secrets(argv[i]);
	if (rc == 1)
		return EXIT_SUCCESS;
	if (!rc) {
		rc = train_run(&c, comm, &err);
		config_done(&c);
	}
	site_hide_secrets(err.text);
	if (rc && comm->rank == 0)
		fprintf(stderr, "uctrain: %s\n", err.text);
	return rc ? failed : EXIT_SUCCESS;
}
