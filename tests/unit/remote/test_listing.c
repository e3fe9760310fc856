/* SPDX-License-Identifier: Apache-2.0 */
/* Listings, as servers and attackers might write them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/remote/listing.h"
#include "tests/support/unit.h"

/* Check the names in order, each followed by a blank, a directory's also by a slash. */
static void assert_names(struct dirlist *l, const char *want)
{
	char got[512] = "";

	dirlist_sort(l, 0);
	for (size_t i = 0; i < l->n; i++) {
		strcat(got, l->v[i].name);
		strcat(got, S_ISDIR(l->v[i].type) ? "/ " : " ");
	}
	assert_string_equal(got, want);
	dirlist_done(l);
}

static const struct {
	const char *page, *names;
} pages[] = {
	/* nginx */
	{ "<a href=\"../\">../</a>\n<a href=\"global_step1/\">global_step1/</a>"
	  "  -\n<a href=\"latest\">latest</a> 12",
	  "global_step1/ latest " },
	/* Apache: sorting links, and the parent by its path */
	{ "<a href=\"?C=N;O=D\">Name</a><a href=\"/\">Parent</a>"
	  "<A HREF='a%20b.pt'>a b</A><a href=x>x</a>",
	  "a b.pt x " },
	/* Python's http.server */
	{ "<li><a href=\"a%26b&amp;c\">a&amp;b</a></li>", "a&b&c " },
	/* the parent's path and URLs */
	{ "<a href=\"/run/in\"><a href=\"/other/out\"><a href=\"/run/d/e\">",
	  "in " },
	{ "<a href=\"http://evil/x\"><a href=\"javascript:x\">",
	  "javascript:x " },
	{ "<a href=\"./here\"><a href=\"..\"><a href=\".\"><a href=\"\">"
	  "<a href=\"a%2Fb\"><a href=\"nul%00\"><a href=\"..%2Fx\">",
	  "here " },
	{ "href <a href=\"open", "open " },
	{ "twice: <a href=b/><a href=\"b\"><a href=b>", "b/ " },
};

static void test_pages(void **state)
{
	for (size_t i = 0; i < COUNT(pages); i++) {
		struct dirlist l = { 0 };
		char *const text = strdup(pages[i].page);

		assert_int_equal(listing_parse_html(&l, text, "/run"), 0);
		assert_names(&l, pages[i].names);
		free(text);
	}
}

static const char list[] =
	"<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name>"
	"<Prefix>run/</Prefix><IsTruncated>true</IsTruncated>"
	"<NextContinuationToken>a&amp;b</NextContinuationToken>"
	"<CommonPrefixes><Prefix>run/d&#233;&lt;/</Prefix></CommonPrefixes>"
	"<Contents><Key>run/latest</Key>"
	"<LastModified>2026-11-22T20:14:01.000Z</LastModified>"
	"<ETag>&quot;abc&quot;</ETag><Size>12</Size></Contents>"
	"<Contents><Key>run/</Key><ETag>\"e\"</ETag><Size>0</Size></Contents>"
	"<Contents><Key>other/x</Key><Size>1</Size></Contents>"
	"<Contents><Key>run/bad</Key><Size>1x</Size></Contents>"
	"</ListBucketResult>";

static void test_s3(void **state)
{
	const struct http_meta *meta;
	struct dirlist l = { 0 };
	char *next;

	assert_int_equal(listing_parse_s3(&l, list, "run/", &next), 0);
	assert_string_equal(next, "a&b");
	free(next);
	dirlist_sort(&l, 0);
	assert_int_equal(l.n, 2);
	assert_string_equal(l.v[0].name, "d\xc3\xa9<");
	assert_true(S_ISDIR(l.v[0].type));
	meta = l.v[1].more;
	assert_non_null(meta);
	assert_int_equal(meta->size, 12);
	assert_string_equal(meta->etag, "\"abc\"");
	assert_int_equal(meta->mtime_s, 1795378441);
	dirlist_done(&l);
	assert_int_equal(listing_parse_s3(&l, "<html>", "", &next), -EBADMSG);
	assert_int_equal(listing_parse_s3(&l,
					  "<ListBucketResult><IsTruncated>true"
					  "</IsTruncated></ListBucketResult>",
					  "", &next),
			 -EBADMSG);
}

static const struct {
	const char *dir, *names;
} dirs[] = {
	{ "", "a/ latest " },
	{ "a/", "b/ x " },
	{ "a/b/", "y " },
	{ "none/", "" },
};

static void test_manifest(void **state)
{
	for (size_t i = 0; i < COUNT(dirs); i++) {
		struct dirlist l = { 0 };
		char text[] =
			"# comment\n\nlatest\r\n./a/x\na/b/y\n../out\n/abs";

		assert_int_equal(listing_parse_manifest(&l, text, dirs[i].dir),
				 0);
		assert_names(&l, dirs[i].names);
	}
}

/* Memory is proportional to the received bytes, even for the shortest links. */
static void test_memory(void **state)
{
	static const char link[] = "href=aaaa ";
	const size_t n = 10000, len = n * strlen(link);
	struct dirlist l = { 0 };
	char *const page = malloc(len + 1);

	assert_non_null(page);
	for (size_t i = 0; i < n; i++)
		memcpy(page + i * strlen(link), link, sizeof(link));
	assert_int_equal(listing_parse_html(&l, page, ""), 0);
	assert_int_equal(l.n, n);
	assert_true(l.cap * sizeof(*l.v) <= 6 * len);
	dirlist_done(&l);
	free(page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_s3),
		cmocka_unit_test(test_manifest),
		cmocka_unit_test(test_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
