/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INFO_IMPL_H
#define UCKPT_INFO_IMPL_H

#include <stdbool.h>

struct report;

/* Parts of uckpt_info.  Each adds to the report's text and JSON. */

/* The rows of the table: one line for each or, unless `each`, one line for all rows whose names
 * differ only in numbers.  The JSON has each row. */
void info_parameters(struct report *r, bool each);

/* The tags of the run that the report was opened with, the newest last: a line for each, with
 * the facts that opening it shows.  Nothing if the report is of a tag. */
void info_tags(struct report *r);

#endif
