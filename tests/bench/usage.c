/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run a command and print its resource usage on standard output:
 *
 *   usage COMMAND...
 *
 * milliseconds, processor milliseconds, peak resident KiB, bytes read by read(2)
 * and similar calls, bytes written, context switches.  The command's own output
 * goes to standard error.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/system.h"

static void fail(const char *what)
{
	fprintf(stderr, "usage: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Return a field of /proc/PID/io of a process that has ended but is not reaped. */
static unsigned long long io_of(pid_t pid, const char *name)
{
	char path[64], line[128];
	unsigned long long value = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/io", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			value = strtoull(line + strlen(name) + 1, NULL, 10);
	if (f)
		fclose(f);
	return value;
}

static double ms(struct timeval t)
{
	return (double)t.tv_sec * 1e3 + (double)t.tv_usec / 1e3;
}

int main(int argc, char **argv)
{
	const double start = clock_seconds();
	unsigned long long in, out;
	struct rusage u;
	siginfo_t info;
	int status;
	pid_t pid;

	if (argc < 2)
		return 2;
	pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid == 0) {
		dup2(STDERR_FILENO, STDOUT_FILENO);
		execvp(argv[1], argv + 1);
		fail(argv[1]);
	}
	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0)
		fail("wait");
	in = io_of(pid, "rchar");
	out = io_of(pid, "wchar");
	if (wait4(pid, &status, 0, &u) < 0)
		fail("wait");
	printf("%.2f %.2f %ld %llu %llu %ld\n", 1e3 * (clock_seconds() - start),
	       ms(u.ru_utime) + ms(u.ru_stime), u.ru_maxrss, in, out,
	       u.ru_nvcsw + u.ru_nivcsw);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
