/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INFO_HTML_H
#define UCKPT_INFO_HTML_H

#include <stddef.h>

struct bytebuf;
struct checkpoint;
struct report;

/* Append text that may come from a file, as it may be shown and so that it is no markup. */
void html_text(struct bytebuf *out, const char *text);

/* Append a picture of the files that the parameters' elements lie in: a table, and what its
 * colours mean.  Sets `failed` when memory runs out. */
void info_picture(struct checkpoint *c, struct bytebuf *out);

/* Make a page of a report that is complete, and has JSON.  The lines of its text from `facts` to
 * `table` are facts, those from there to `end` the parameters. */
void info_html(struct report *r, size_t facts, size_t table, size_t end,
	       struct bytebuf *out);

#endif
