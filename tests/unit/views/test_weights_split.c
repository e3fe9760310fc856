/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights in several files: the rule is huggingface_hub's, whose answers
 * (tests/splits.expect, made by tests/interop/make_splits.py) are compared with
 * ours line by line.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/views/weights_split.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

#define TENSORS_MAX 64

/* Print a split in the form of the lines: "0 2 / 1 ; 250". */
static void print_split(const struct weights_split *s, char *out)
{
	out += sprintf(out, " ");
	for (size_t f = 0; f < s->nfiles; f++) {
		if (f)
			out += sprintf(out, "/ ");
		for (size_t i = s->begin[f]; i < s->begin[f + 1]; i++)
			out += sprintf(out, "%zu ", s->order[i]);
	}
	sprintf(out, "; %llu", (unsigned long long)s->total);
}

static void check_line(char *line)
{
	uint64_t len[TENSORS_MAX], max;
	size_t same[TENSORS_MAX], n = 0;
	char got[1024], *expect, *word;
	struct weights_split s;

	expect = strstr(line, "->");
	assert_non_null(expect);
	expect[-1] = '\0';
	max = strtoull(line, &line, 10);
	line++;
	while ((word = strsep(&line, " "))) {
		if (!*word)
			continue;
		same[n] = *word == '=' ? strtoull(word + 1, NULL, 10) : n;
		len[n] = *word == '=' ? len[same[n]] : strtoull(word, NULL, 10);
		n++;
	}
	assert_int_equal(weights_split_init(&s, len, same, n, max, NULL), 0);
	print_split(&s, got);
	assert_string_equal(got, expect + 2);
	weights_split_done(&s);
}

static void the_rule_is_huggingface_hubs(void **state)
{
	char line[1024];
	unsigned n = 0;
	glob_t g;
	FILE *f;

	realfiles_glob(&g, "tests/splits.expect");
	f = fopen(g.gl_pathv[0], "r");
	assert_non_null(f);
	globfree(&g);
	for (; fgets(line, sizeof(line), f); n++) {
		line[strcspn(line, "\n")] = '\0';
		check_line(line);
	}
	fclose(f);
	assert_true(n > 50);
}

static void files_are_numbered_if_there_are_several(void **state)
{
	const uint64_t len[] = { 60, 60, 60 };
	const size_t same[] = { 0, 1, 2 };
	char name[NAME_MAX + 1];
	struct weights_split s;

	assert_int_equal(weights_split_init(&s, len, same, 3, 180, NULL), 0);
	weights_split_name(&s, "model", "safetensors", 0, name);
	assert_string_equal(name, "model.safetensors");
	weights_split_done(&s);
	assert_int_equal(weights_split_init(&s, len, same, 3, 100, NULL), 0);
	weights_split_name(&s, "model", "safetensors", 1, name);
	assert_string_equal(name, "model-00002-of-00003.safetensors");
	weights_split_done(&s);
}

/* Printed by json.dumps({...}, indent=2, sort_keys=True). */
static void the_index_is_what_python_prints(void **state)
{
	static const char *const names[] = { "b", "a\"\\\n\x7f", "\xc3\xa9", "\xf0\x9f\x98\x80",
					     "B" };
	static const char expect[] = "{\n"
				     "  \"metadata\": {\n"
				     "    \"total_size\": 50\n"
				     "  },\n"
				     "  \"weight_map\": {\n"
				     "    \"B\": \"w-00003-of-00003.bin\",\n"
				     "    \"a\\\"\\\\\\n\\u007f\": \"w-00001-of-00003.bin\",\n"
				     "    \"b\": \"w-00001-of-00003.bin\",\n"
				     "    \"\\u00e9\": \"w-00002-of-00003.bin\",\n"
				     "    \"\\ud83d\\ude00\": \"w-00002-of-00003.bin\"\n"
				     "  }\n"
				     "}\n";
	const uint64_t len[] = { 10, 10, 10, 10, 10 };
	const size_t same[] = { 0, 1, 2, 3, 4 };
	struct bytebuf out = { 0 };
	struct weights_split s;

	assert_int_equal(weights_split_init(&s, len, same, 5, 20, NULL), 0);
	assert_int_equal(weights_split_index(&s, "w", "bin", names, &out, NULL), 0);
	assert_int_equal(out.len, strlen(expect));
	assert_memory_equal(out.data, expect, out.len);
	bytebuf_done(&out);
	weights_split_done(&s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_rule_is_huggingface_hubs),
		cmocka_unit_test(files_are_numbered_if_there_are_several),
		cmocka_unit_test(the_index_is_what_python_prints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
