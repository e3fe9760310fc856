/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several runs of uctrain, one after the other, by ranks that are started once: they take longer
 * to start than to train a small model.
 *
 *     uctrain_runs LOG FLAG... [-- LOG FLAG...]...
 *
 * What a run says is appended to its LOG.  Of a run that fails rank 0 prints the LOG; that does
 * not make the program fail.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/comm.h"
#include "gpu/train/command.h"
#include "gpu/watch/watch.h"

/* Redirect standard output and error to file `fd`. */
static void say_to(int fd)
{
	fflush(NULL);
	if (dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
		abort();
}

/* argv[0] is the log. */
static void run(struct comm *comm, int argc, char **argv, int own)
{
	const int log = open(argv[0], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	int status = EXIT_FAILURE;

	if (log >= 0) {
		say_to(log);
		close(log);
		status = train_command(comm, argc, argv);
		say_to(own);
	}
	if (status && comm->rank == 0)
		printf("%s\n", argv[0]);
}

int main(int argc, char **argv)
{
	const int own = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	struct errmsg err = { "" };
	struct comm comm;
	int first = 1;

	if (comm_init(&comm, &argc, &argv, &err)) {
		fprintf(stderr, "uctrain_runs: %s\n", err.text);
		return EXIT_FAILURE;
	}
	stop_on_signals();
	for (int i = 1; i <= argc; i++) {
		if (i < argc && strcmp(argv[i], "--") != 0)
			continue;
		argv[i] = NULL;
		run(&comm, i - first, argv + first, own);
		first = i + 1;
	}
	comm_done(&comm);
	return EXIT_SUCCESS;
}
