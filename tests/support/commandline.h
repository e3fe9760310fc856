/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines of uctrain as users write them, and the resulting configuration. */
#ifndef TESTS_COMMANDLINE_H
#define TESTS_COMMANDLINE_H

#include "ckpt/base/errmsg.h"
#include "gpu/config/config.h"

#define LINE_LEN 512

/* Parse words separated by blanks with config_parse. */
int line_parse(struct config *c, const char *line, unsigned ranks, struct errmsg *err);

void line_is_taken(struct config *c, const char *line, unsigned ranks);
void line_is_refused(const char *line, unsigned ranks, const char *says);

/* Write a configuration, and return the command line that names it, followed by `more`. */
const char *line_with_json(const char *json, const char *more);

/* Set up and tear down the directory for configurations, for all tests of a program. */
int lines_set_up(void **state);
int lines_tear_down(void **state);

#endif
