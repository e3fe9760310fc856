/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INFO_HTML_H
#define UCKPT_INFO_HTML_H

#include <stddef.h>

struct bytebuf;
struct checkpoint;
struct report;

/* Append text from a file, as it may be shown, with markup escaped. */
void html_text(struct bytebuf *out, const char *text);

/* Append a picture that shows in which files the parameters' elements lie: a table with a legend of
 * the colours.  Sets `failed` when memory runs out. */
void info_picture(struct checkpoint *c, struct bytebuf *out);

/* Make a page of a complete report that has JSON.  Its text has the facts from `facts` to
 * `table`, and the parameters from there to `end`. */
void info_html(struct report *r, size_t facts, size_t table, size_t end,
	       struct bytebuf *out);

#endif
