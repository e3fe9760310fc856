/* SPDX-License-Identifier: Apache-2.0 */
/* ucplot: curves of several runs in one picture. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "gpu/plot/plot.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct options {
	bool csv, png;
	const char *prefix;
	struct plot_tags tags;
};

static void plot_main_print_help(void)
{
	puts("usage: ucplot [options] RUN...\n"
	     "\n"
	     "Draw the losses of runs into one picture, and write each as a table.\n"
	     "RUN is a directory of uctrain's log_dir, an event file of TensorBoard, or a\n"
	     "CSV file with the columns step and loss.\n"
	     "\n"
	     "    -o, --output PREFIX  write PREFIX.png and PREFIX-NAME.csv (loss)\n"
	     "    --png                the picture only\n"
	     "    --csv                the tables only\n"
	     "    --tag TAG            show this instead of train/loss and valid/loss;\n"
	     "                         may be given several times\n"
	     "    -h, --help           print this\n"
	     "    -V, --version        print the version");
}

static int usage(const char *word, const char *what)
{
	fprintf(stderr, "ucplot: %s%s%s; see --help\n", word, *word ? ": " : "", what);
	return EXIT_USAGE;
}

/* Parse the command line.  Returns -1 to continue, or an exit status. */
static int plot_main_parse(struct options *o, int argc, char **argv)
{
	static const struct option options[] = {
		{ "output", required_argument, NULL, 'o' },
		{ "png", no_argument, NULL, 'p' },
		{ "csv", no_argument, NULL, 'c' },
		{ "tag", required_argument, NULL, 't' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ 0 },
	};
	struct errmsg why;
	int c;

	opterr = 0;
	while ((c = getopt_long(argc, argv, ":o:hV", options, NULL)) != -1) {
		switch (c) {
		case 'o':
			o->prefix = optarg;
			break;
		case 'p':
			o->png = true;
			break;
		case 'c':
			o->csv = true;
			break;
		case 't':
			if (o->tags.n == PLOT_TAGS_MAX)
				return usage("--tag", "too many");
			o->tags.names[o->tags.n++] = optarg;
			break;
		case 'h':
			plot_main_print_help();
			return EXIT_OK;
		case 'V':
			puts("ucplot " PACKAGE_VERSION);
			return EXIT_OK;
		case ':':
			return usage(argv[optind - 1], "needs a value");
		default:
			suggest_option(options, argv[optind - 1], &why);
			return usage(argv[optind - 1], why.text);
		}
	}
	if (optind == argc)
		return usage("", "no RUN to plot");
	if (!o->tags.n)
		o->tags = plot_losses;
	if (!o->png && !o->csv)
		o->png = o->csv = true;
	return -1;
}

/* Number a run that has the name of an earlier one: runs in different directories may have equal
 * names. */
static int number_duplicate(struct plot_run *runs, size_t i)
{
	char **const names[] = { &runs[i].name, &runs[i].label };
	size_t same = 1;

	for (size_t k = 0; k < i; k++)
		same += strcmp(runs[k].name, runs[i].name) == 0;
	for (size_t k = 0; same > 1 && k < COUNT(names); k++) {
		char *longer;

		if (asprintf(&longer, "%s-%zu", *names[k], same) < 0)
			return -ENOMEM;
		free(*names[k]);
		*names[k] = longer;
	}
	return 0;
}

static int read_all(struct plot_run *runs, size_t n, char **paths, const struct plot_tags *tags,
		    struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++)
		rc = plot_run_read(&runs[i], paths[i], tags, err);
	/* Go backwards, so that names are compared with the original names before them. */
	for (size_t i = n; !rc && i-- > 1;)
		rc = number_duplicate(runs, i);
	return rc;
}

static int plot_main_write_all(const struct options *o, const struct plot_run *runs, size_t n,
			       struct errmsg *err)
{
	char *path;
	int rc = 0;

	for (size_t i = 0; o->csv && !rc && i < n; i++) {
		if (asprintf(&path, "%s-%s.csv", o->prefix, runs[i].name) < 0)
			return errmsg_nomem(err, NULL);
		rc = plot_csv_write(&runs[i], path, err);
		free(path);
	}
	if (rc || !o->png)
		return rc;
	if (asprintf(&path, "%s.png", o->prefix) < 0)
		return errmsg_nomem(err, NULL);
	rc = plot_draw(runs, n, path, false, err);
	free(path);
	return rc;
}

int main(int argc, char **argv)
{
	struct options o = { .prefix = "loss" };
	const int status = plot_main_parse(&o, argc, argv);
	struct errmsg err = { "out of memory" };
	struct plot_run *runs;
	size_t n;
	int rc = -ENOMEM;

	if (status >= 0)
		return status;
	n = (size_t)(argc - optind);
	runs = calloc(n, sizeof(*runs));
	if (runs)
		rc = read_all(runs, n, argv + optind, &o.tags, &err);
	if (!rc)
		rc = plot_main_write_all(&o, runs, n, &err);
	if (rc)
		fprintf(stderr, "ucplot: %s\n", err.text);
	for (size_t i = 0; runs && i < n; i++)
		plot_run_done(&runs[i]);
	free(runs);
	return rc ? EXIT_FAILED : EXIT_OK;
}
