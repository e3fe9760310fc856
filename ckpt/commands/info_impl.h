/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INFO_IMPL_H
#define UCKPT_INFO_IMPL_H

#include <stdbool.h>

struct report;

/* Parts of uckpt_info.  Each adds to the report's text and JSON. */

/* The rows of the table: one line for each, or for all whose names differ in numbers only,
 * unless `each`.  The JSON has each row. */
void info_parameters(struct report *r, bool each);

/* The tags of the run that the report was opened with, the newest last: a line for each, with
 * what is known by opening it.  Nothing if it is a tag itself. */
void info_tags(struct report *r);

#endif
