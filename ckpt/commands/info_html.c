/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A report as one self-contained HTML page, without network access or scripts.  It is also
 * well-formed XML. The views come from the report's JSON; facts and tables come from its text.
 */
#include "ckpt/commands/info_html.h"

#include <cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/report.h"

static const char head[] =
	"<!DOCTYPE html>\n"
	"<html lang=\"en\">\n"
	"<head>\n"
	"<meta charset=\"utf-8\"/>\n"
	"<meta name=\"viewport\" content=\"width=device-width\"/>\n"
	"<style>\n"
	":root { color-scheme: light dark; --line: #8884; --dim: #888; --empty: #8883 }\n"
	"body { font: 14px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto;\n"
	"  padding: 0 1rem }\n"
	"h1 { font-size: 1.25rem; overflow-wrap: anywhere }\n"
	"h2 { font-size: 1rem; margin: 2rem 0 .5rem }\n"
	"table { border-collapse: collapse; width: 100% }\n"
	"th, td { text-align: left; vertical-align: top; padding: .15rem .75rem .15rem 0;\n"
	"  border-bottom: 1px solid var(--line); overflow-wrap: anywhere;\n"
	"  font-variant-numeric: tabular-nums }\n"
	"th { font-weight: 500; color: var(--dim) }\n"
	"pre { overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace }\n"
	".facts th { width: 9rem; white-space: nowrap }\n"
	".picture th { font: 12px ui-monospace, monospace; color: inherit; max-width: 24rem }\n"
	".picture .box { width: 50%; padding-top: .3rem }\n"
	".picture td { font-size: 12px; color: var(--dim) }\n"
	"svg { display: block; width: 100%; height: 20px; background: var(--empty) }\n"
	"rect { fill: currentcolor }\n"
	"rect.none { fill: var(--empty) }\n"
	".legend { list-style: none; padding: 0; font: 12px ui-monospace, monospace }\n"
	".legend span { display: inline-block; width: 1em; height: 1em;\n"
	"  vertical-align: text-bottom; background: currentcolor }\n"
	"</style>\n";

void html_text(struct bytebuf *out, const char *text)
{
	unsigned n;
	uint32_t c;

	for (; *text; text += n ?: 1) {
		n = utf8_next(text, &c);
		/* XML allows neither surrogates nor U+FFFE and U+FFFF. */
		if (!n || !utf8_is_shown(c) || utf8_is_surrogate(c) || c == 0xfffe || c == 0xffff)
			bytebuf_add_str(out, UTF8_REPLACEMENT);
		else if (c < 0x80 && strchr("&<>\"'", (int)c))
			bytebuf_add_format(out, "&#%u;", (unsigned)c);
		else
			bytebuf_add(out, text, n);
	}
}

static void heading(struct bytebuf *out, const char *text)
{
	bytebuf_add_format(out, "<h2>%s</h2>\n", text);
}

/* Copy a range of the report's text.  NULL when memory runs out. */
static char *copy_text(const struct report *r, size_t from, size_t to)
{
	return strndup((const char *)r->text.data + from, to - from);
}

/* Append lines verbatim: their columns are aligned. */
static void add_lines(struct bytebuf *out, const char *title, char *text)
{
	char *at = text + strspn(text, "\n"), *line;

	if (!*at)
		return;
	heading(out, title);
	bytebuf_add_str(out, "<pre>");
	while ((line = strsep(&at, "\n")) && (at || *line)) {
		html_text(out, line);
		bytebuf_add_str(out, "\n");
	}
	bytebuf_add_str(out, "</pre>\n");
}

/* Append the facts.  The views are in a separate table. */
static void add_facts(struct bytebuf *out, char *text)
{
	bool views = false;
	char *line;

	bytebuf_add_str(out, "<table class=\"facts\">\n");
	while ((line = strsep(&text, "\n"))) {
		char *value = strlen(line) > REPORT_LABEL ? line + REPORT_LABEL : line;

		if (value == line)
			continue;
		if (*line != ' ')
			views = strncmp(line, "convert ", 8) == 0;
		if (views)
			continue;
		value[-1] = '\0';
		bytebuf_add_str(out, "<tr><th>");
		html_text(out, line);
		bytebuf_add_str(out, "</th><td>");
		html_text(out, value);
		bytebuf_add_str(out, "</td></tr>\n");
	}
	bytebuf_add_str(out, "</table>\n");
}

static void add_views(struct bytebuf *out, const cJSON *list)
{
	const cJSON *o;

	if (!cJSON_GetArraySize(list))
		return;
	heading(out, "Views");
	bytebuf_add_str(out, "<table class=\"facts\">\n");
	cJSON_ArrayForEach(o, list) {
		const cJSON *why = cJSON_GetObjectItemCaseSensitive(o, "reason");

		bytebuf_add_str(out, "<tr><th>");
		html_text(out, cJSON_GetObjectItemCaseSensitive(o, "options")->valuestring);
		bytebuf_add_str(out, why ? "</th><td>no: " : "</th><td>yes");
		html_text(out, why ? why->valuestring : "");
		bytebuf_add_str(out, "</td></tr>\n");
	}
	bytebuf_add_str(out, "</table>\n");
}

static void add_notes(struct bytebuf *out, const char *title, const struct notes *l)
{
	if (!l->n)
		return;
	heading(out, title);
	bytebuf_add_str(out, "<ul>\n");
	for (size_t i = 0; i < l->n; i++) {
		bytebuf_add_str(out, "<li>");
		html_text(out, l->v[i]);
		bytebuf_add_str(out, "</li>\n");
	}
	bytebuf_add_str(out, "</ul>\n");
}

void info_html(struct report *r, size_t facts, size_t table, size_t end, struct bytebuf *out)
{
	char *tags = copy_text(r, 0, facts), *lines = copy_text(r, facts, table);
	char *parameters = copy_text(r, table, end);

	out->failed |= !tags || !lines || !parameters;
	if (!out->failed) {
		bytebuf_add_str(out, head);
		bytebuf_add_str(out, "<title>");
		html_text(out, r->dir);
		bytebuf_add_str(out, "</title>\n</head>\n<body>\n<h1>");
		html_text(out, r->dir);
		bytebuf_add_str(out, "</h1>\n");
		add_facts(out, lines);
		add_notes(out, "Problems", &r->problems);
		add_notes(out, "Warnings", &r->warnings);
		add_notes(out, "Notes", &r->notes);
		add_views(out, cJSON_GetObjectItemCaseSensitive(r->json, "convert"));
		add_lines(out, "Tags of the run", tags);
		add_lines(out, "Parameters", parameters);
		if (r->c) {
			heading(out, "Which file has which elements");
			bytebuf_add_str(out, "<p>A box has a parameter's bytes from the first to the"
					" last; of one that is joined from slices, its rows and columns."
					"  Pointing at a piece shows its place.</p>\n");
			info_picture(r->c, out);
		}
		bytebuf_add_str(out, "</body>\n</html>\n");
	}
	free(tags);
	free(lines);
	free(parameters);
}
