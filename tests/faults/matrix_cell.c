/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cell of the matrix: damages its file, and compares the source as the library, a mount or
 * `convert` shows it with its former state.
 */
#include "tests/faults/matrix_cell.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/uckpt.h"
#include "tests/faults/halfway.h"
#include "tests/faults/matrix_tree.h"

#define NOBODY 65534
#define RANKS "4" /* ranks of the re-cut view */

static const char *const when_names[WHENS] = { "before it is opened",
					       "after it was listed" };

/* Words of the message for damage found after the tree was listed. */
static const struct {
	const char *name, *words;
} fault_names[FAULTS] = {
	[MISSING] = { "missing", "No such file" },
	[TRUNCATED] = { "truncated", "was truncated" },
	[GARBAGE] = { "garbage", "was written to" },
	[UNREADABLE] = { "unreadable", "Permission denied" },
	[HALFWAY] = { "EIO half-way", "Input/output error" },
	[REPLACED] = { "replaced", "was replaced" },
	[WRITTEN] = { "written to", "was written to" },
};

static const struct form {
	const char *to, *suffix;
} forms[] = {
	{ "universal", "_universal" },
	{ "fp32", "_fp32" },
	{ "hf", "_hf" },
	{ "dcp", "_dcp" },
	{ "zero", "_dp" RANKS },
};

void cell_broken(struct cell *c, const char *fmt, ...)
{
	va_list ap;

	printf("%s: %s is %s %s, %s: ", c->source->name, c->file,
	       fault_names[c->fault].name, when_names[c->when], c->way);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	c->broken = true;
}

/* Damage the file. */
static void inflict(const struct cell *c)
{
	static const struct timespec now[2] = { { .tv_nsec = UTIME_NOW },
						{ .tv_nsec = UTIME_NOW } };
	char text[4096], other[300];
	struct stat st;
	int fd, rc = 0;

	memset(text, 'x', sizeof(text));
	if (stat(c->path, &st))
		abort();
	switch (c->fault) {
	case MISSING:
		rc = unlink(c->path);
		break;
	case TRUNCATED:
		rc = truncate(c->path, st.st_size / 2);
		break;
	case GARBAGE:
	case WRITTEN:
		fd = open(c->path, O_WRONLY | O_CLOEXEC);
		for (off_t at = c->fault == GARBAGE ? 0 : st.st_size / 2;
		     at < st.st_size; at += (off_t)sizeof(text))
			rc |= pwrite(fd, text,
				     st.st_size - at < (off_t)sizeof(text)
					     ? (size_t)(st.st_size - at)
					     : sizeof(text),
				     at) <= 0;
		rc |= futimens(fd, now);
		close(fd);
		break;
	case REPLACED: /* replace it by a file of the same size and time */
		snprintf(other, sizeof(other), "%s.new", c->path);
		fd = open(other, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		rc = ftruncate(fd, st.st_size) ||
		     futimens(fd,
			      (struct timespec[2]){ st.st_mtim, st.st_mtim }) ||
		     rename(other, c->path);
		close(fd);
		break;
	case UNREADABLE:
		rc = chmod(c->path, 0);
		if (!geteuid())
			rc |= setgid(NOBODY) || setuid(NOBODY);
		break;
	case HALFWAY:
		rc = setenv(HALFWAY_FILE, c->path, 1);
		break;
	case FAULTS:
		abort();
	}
	if (rc)
		abort();
}

/* Return whether a message names the file, or the rank of a file that was never seen. */
static bool is_explained(const struct cell *c)
{
	return c->named || c->got->named ||
	       (c->fault == MISSING && c->said &&
		(c->when == BEFORE || c->source->flags & OWN_WORDS));
}

/* Compare the result with those paths of the truth that begin with `prefix`. */
static void judge(struct cell *c, const char *prefix)
{
	const size_t len = strlen(prefix);
	unsigned lost = 0;

	for (unsigned i = 0; i < c->truth->n; i++) {
		const struct tree_file *const want = &c->truth->v[i], *got;

		/* The damaged file itself is shown unchanged, and so is its copy in a tree. */
		if (strncmp(want->path, prefix, len) ||
		    !strcmp(tree_name(want->path), tree_name(c->file)))
			continue;
		got = tree_find(c->got, "", want->path + len);
		if (!got)
			lost++;
		else if (got->size != want->size || got->hash != want->hash)
			cell_broken(c, "%s has other bytes", want->path);
	}
	/* Removing the pack removes its files. */
	if (lost && !c->got->failed && !is_explained(c) &&
	    !(c->source->flags & PACKED && c->fault == MISSING))
		cell_broken(c, "%u files are gone without a word", lost);
	if (*c->got->text && !is_explained(c))
		cell_broken(c, "\"%s\" does not name the file", c->got->text);
}

static struct tree_fault fault_of(const struct cell *c)
{
	const bool own = c->when == BEFORE || c->source->flags & OWN_WORDS;

	return (struct tree_fault){ c->file,
				    own ? "" : fault_names[c->fault].words };
}

static void take_message(void *arg, const char *text)
{
	struct cell *const c = arg;
	const struct tree_fault f = fault_of(c);

	c->said++;
	c->named |= tree_is_named(&f, text);
}

struct uckpt *cell_context(struct cell *c)
{
	struct uckpt *const u = uckpt_new();

	if (!u || uckpt_set(u, "ranks=" RANKS, NULL))
		abort();
	uckpt_set_calls(
		u, &(struct uckpt_calls){ .arg = c, .warning = take_message });
	return u;
}

void cell_by_library(struct cell *c)
{
	struct uckpt_error err = { "" };
	const struct tree_fault fault = fault_of(c);
	struct uckpt *const u = cell_context(c);
	int rc;

	if (c->when == BEFORE)
		inflict(c);
	rc = uckpt_open(u, (const char *[]){ c->run }, 1, &err);
	if (rc) {
		take_message(c, err.text);
		if (c->when == LISTED)
			cell_broken(c, "cannot open what is whole: %s", err.text);
	} else {
		if (c->when == LISTED) {
			tree_list_source(u);
			inflict(c);
		}
		tree_read_source(u, &fault, c->got);
	}
	uckpt_free(u);
	judge(c, "");
}

static void convert_form(struct cell *c, const struct form *f)
{
	struct uckpt *const u = uckpt_new();
	struct uckpt_done done = { 0 };
	struct uckpt_error err = { "" };
	char option[32], dest[200], prefix[64] = "";
	struct stat st;
	int rc;

	snprintf(option, sizeof(option), "view=%s", f->to);
	snprintf(dest, sizeof(dest), "%s/out%s", c->dir, f->suffix);
	if (*c->source->tag)
		snprintf(prefix, sizeof(prefix), "%s%s/", c->source->tag,
			 f->suffix);
	if (!u || uckpt_set(u, option, NULL) ||
	    (!strcmp(f->to, "zero") && uckpt_set(u, "ranks=" RANKS, NULL)))
		abort();
	uckpt_set_calls(
		u, &(struct uckpt_calls){ .arg = c, .warning = take_message });
	c->said = c->got->n = c->got->failed = 0;
	rc = uckpt_convert(u, (const char *[]){ c->run }, 1, dest, &done, &err);
	uckpt_free(u);
	if (!rc) {
		tree_read_dir(dest, c->got);
		judge(c, prefix);
	} else if (c->fault == MISSING ? !*err.text
				       : !strstr(err.text, tree_name(c->file))) {
		cell_broken(c, "%s: the message does not name the file: %s", f->to,
		       err.text);
	} else if (!lstat(dest, &st)) {
		cell_broken(c, "%s fails, and leaves %s: %s", f->to, dest, err.text);
	}
}

void cell_by_convert(struct cell *c)
{
	inflict(c);
	for (size_t i = 0; i < COUNT(forms); i++)
		if (*c->source->tag || !strcmp(forms[i].to, "universal"))
			convert_form(c, &forms[i]);
}

/* Start the server in the foreground; its messages go to the file `log`. */
static pid_t serve(const struct cell *c, const char *mnt, const char *log)
{
	const char *const build = getenv("top_builddir");
	char program[4096], preload[4096];
	const pid_t pid = fork();
	int fd;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* SIGTERM unmounts */
	snprintf(program, sizeof(program), "%s/ucfs", build);
	snprintf(preload, sizeof(preload), "%s/tests/faults/halfway.so", build);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	if (c->fault == HALFWAY)
		setenv("LD_PRELOAD", preload, 1);
	execl(program, "ucfs", "-f", "-o", "ranks=" RANKS, c->run, mnt,
	      (char *)NULL);
	_exit(127);
}

static bool is_mounted(const struct cell *c, const char *mnt, pid_t server)
{
	struct stat above, st;
	int status;

	for (int i = 0; i < 1000; i++) {
		if (stat(c->dir, &above) || stat(mnt, &st))
			return false;
		if (above.st_dev != st.st_dev)
			return true;
		if (waitpid(server, &status, WNOHANG) == server)
			return false;
		usleep(5000);
	}
	return false;
}

static int unmount(const char *mnt, pid_t server)
{
	char command[300];
	int status = -1;

	snprintf(command, sizeof(command), "fusermount3 -u '%s'", mnt);
	for (int i = 0; i < 100 && system(command); i++)
		usleep(20000);
	waitpid(server, &status, 0);
	return status;
}

/* Read the server's log, without its request for the model's configuration.  `print`: also print
 * all of it, for readers of the test's log. */
static void take_log(struct cell *c, const char *log, bool print)
{
	FILE *const f = fopen(log, "r");
	char line[2048];

	while (f && fgets(line, sizeof(line), f)) {
		if (print)
			fputs(line, stdout);
		if (!strstr(line, "config.json"))
			take_message(c, line);
	}
	if (f)
		fclose(f);
}

void cell_by_mount(struct cell *c)
{
	char mnt[128], log[128];
	pid_t server;
	int status;

	snprintf(mnt, sizeof(mnt), "%s/mnt", c->dir);
	snprintf(log, sizeof(log), "%s/log", c->dir);
	if (mkdir(mnt, 0755))
		abort();
	if (c->fault == HALFWAY)
		inflict(c);
	server = serve(c, mnt, log);
	if (!is_mounted(c, mnt, server)) {
		take_log(c, log, false);
		if (c->fault != HALFWAY || !c->named)
			cell_broken(c, "the mount fails, see %s", log);
		return;
	}
	tree_list_dir(mnt);
	if (c->fault != HALFWAY)
		inflict(c);
	tree_read_dir(mnt, c->got);
	status = unmount(mnt, server);
	if (status)
		cell_broken(c, "the server ends with status %#x", status);
	take_log(c, log, status != 0);
	judge(c, "");
}
