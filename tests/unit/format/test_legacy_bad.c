/* SPDX-License-Identifier: Apache-2.0 */
/* Torch's container before zip: damaged and hostile files are refused. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "tests/make/mklegacy.h"
#include "tests/make/mkpt.h"
#include "tests/support/realfiles.h"
#include "tests/support/sampled.h"
#include "tests/support/unit.h"

static void damaged_and_hostile_are_refused(void **state)
{
	static const struct {
		int rc;
		const char *says;
		struct legacy_replaced r[3];
	} cases[] = {
		/* The header. */
		{ -EBADMSG, "without its magic number",
		  { { PART_MAGIC,
		      BYTES("\200\2\212\12\154\374\234F\371 j\250P\30.") } } },
		{ -EBADMSG, "without its magic number",
		  { { PART_MAGIC, BYTES("\200\2K\1.") } } },
		{ -EBADMSG, "without its magic number",
		  { { PART_MAGIC, BYTES("\200\2}.") } } },
		{ -EBADMSG, "not a file of torch.save",
		  { { PART_MAGIC, BYTES("}.") } } },
		{ -ENOTSUP, "protocol version 1000, 1001 is known",
		  { { PART_VERSION, BYTES("\200\2M\350\3.") } } },
		{ -EBADMSG, "no protocol version",
		  { { PART_VERSION, BYTES("\200\2N.") } } },
		{ -ENOTSUP, "big-endian",
		  { { PART_SYS_INFO, BYTES(SYS_INFO(FALSE)) } } },
		{ -EBADMSG, "byte order",
		  { { PART_SYS_INFO, BYTES(SYS_INFO("N")) } } },
		{ -EBADMSG, "byte order",
		  { { PART_SYS_INFO, BYTES("\200\2}.") } } },
		{ -EBADMSG, "byte order",
		  { { PART_SYS_INFO, BYTES("\200\2N.") } } },
		{ -EBADMSG, "no protocol version",
		  { { PART_SYS_INFO,
		      BYTES("\200\2}X\15\0\0\0little_endian\210s.") } } },
		/* Pickles. */
		{ -EBADMSG, "magic number+0x2: refusing global os.system",
		  { { PART_MAGIC, BYTES("\200\2cos\nsystem\n.") } } },
		{ -EBADMSG, "sys_info+0x2: refusing global os.system",
		  { { PART_SYS_INFO, BYTES("\200\2cos\nsystem\n.") } } },
		{ -EBADMSG, "object+0x2: refusing global os.system",
		  { { PART_OBJECT, BYTES("\200\2cos\nsystem\n.") } } },
		{ -EBADMSG, "storage keys+0x2: refusing global os.system",
		  { { PART_KEYS, BYTES("\200\2cos\nsystem\n.") } } },
		{ -EBADMSG, "refusing global os.system",
		  { { PART_OBJECT, BYTES("\200\2(X\6\0\0\0modulecos\nsystem\n"
					 "NNtQ.") } } },
		{ -ENOTSUP, "object+0x2: opcode 0x82 not allowed",
		  { { PART_OBJECT, BYTES("\200\2\202\1.") } } },
		{ -EBADMSG, "object+0x2: pickle ends inside opcode 0x58",
		  { { PART_OBJECT, BYTES("\200\2X\377\377\377\177.") } } },
		{ -EBADMSG, "sys_info+0x2: pickle ends inside opcode 0x58",
		  { { PART_SYS_INFO, BYTES("\200\2X\377\377\0\0.") } } },
		{ -E2BIG, "memo index 2147483647",
		  { { PART_OBJECT, BYTES("\200\2Nr\377\377\377\177.") } } },
		/* Keys. */
		{ -EBADMSG, "storage keys are a dict",
		  { { PART_KEYS, BYTES("\200\2}.") } } },
		{ -EBADMSG, "storage key 1 is not a string",
		  { { PART_KEYS, BYTES(KEYS(KEY("11") "K\26")) } } },
		{ -EBADMSG, "storage key 1 is not a string",
		  { { PART_KEYS, BYTES(KEYS(KEY("11") KEY("2\0"))) } } },
		{ -EBADMSG, "storage key 1 is not a string",
		  { { PART_KEYS,
		      BYTES(KEYS(KEY("11") STORAGE("FloatStorage", "22", "K\5",
						   ROOT))) } } },
		{ -EBADMSG, "storage 22 is missing",
		  { { PART_KEYS, BYTES(KEYS(KEY("11"))) } } },
		{ -EBADMSG, "storage 11 is missing",
		  { { PART_KEYS, BYTES("\200\2].") } } },
		{ -EBADMSG, "storage 33 is not referenced",
		  { { PART_KEYS, BYTES(KEYS(KEY("11") KEY("22") KEY("33"))) } } },
		{ -EBADMSG, "storage 11 is there twice",
		  { { PART_KEYS, BYTES(KEYS(KEY("11") KEY("22") KEY("11"))) } } },
		{ -EBADMSG, "storage 22: 4 elements of 2 bytes, its tensors need"
			    " 10 bytes",
		  { { PART_KEYS, BYTES(KEYS(KEY("22") KEY("11"))) } } },
		/* Counts and data. */
		{ -EBADMSG, "storage 11: 3 elements of 4 bytes",
		  { { PART_DATA, BYTES(U64("\3") "aaaabbbbcccc" DATA_22) } } },
		{ -EBADMSG, "storage 22: 6 elements",
		  { { PART_DATA, BYTES(DATA_11 U64("\6") "eeffgghhiijj") } } },
		{ -EBADMSG, "storage 11: 18446744073709551615 elements",
		  { { PART_DATA, BYTES("\377\377\377\377\377\377\377\377") } } },
		{ -EBADMSG, "storage 11: 4611686018427387908 elements",
		  { { PART_DATA, BYTES("\4\0\0\0\0\0\0\100"
				       "aaaabbbbccccdddd" DATA_22) } } },
		{ -EBADMSG, "ends inside storage 11, which has"
			    " 9223372036854775808 bytes",
		  { { PART_OBJECT,
		      BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11",
						  "\212\10\0\0\0\0\0\0\0\40",
						  ROOT),
					  "K\1", "K\3"),
				   HALVES)) },
		    { PART_DATA, BYTES("\0\0\0\0\0\0\0\40"
				       "aaaa") } } },
		{ -EBADMSG, "storage 11 of 9223372036854775807 elements",
		  { { PART_OBJECT,
		      BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11",
						  "\212\10\377\377\377\377\377"
						  "\377\377\177", ROOT),
					  "K\1", "K\3"),
				   HALVES)) } } },
		{ -EBADMSG, "3 bytes after the last storage",
		  { { PART_DATA, BYTES(DATA_11 DATA_22 "jjk") } } },
		/* Persistent ids. */
		{ -EBADMSG, "not a storage's",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("HalfStorage", "22", "K\5",
						   ""))) } } },
		{ -EBADMSG, "not a storage's",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("HalfStorage", "22", "K\5",
						   "NN"))) } } },
		{ -EBADMSG, "not a storage's",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("HalfStorage", "22",
						   "J\377\377\377\377",
						   ROOT))) } } },
		{ -EBADMSG, "not a storage's",
		  { { PART_OBJECT, BYTES("\200\2(X\6\0\0\0moduleK\1NNtQ.") } } },
		{ -ENOTSUP, "storage of unknown type torch.QInt9Storage",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("QInt9Storage", "22", "K\5",
						   ROOT))) } } },
		{ -EBADMSG, "storage 11 has 16 bytes and 20",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("FloatStorage", "11", "K\5",
						   ROOT))) } } },
		{ -ENOTSUP, "a view of storage 22",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   STORAGE("HalfStorage", "22", "K\5",
					   VIEW("33", "K\3", "K\2")))) } } },
		{ -ENOTSUP, "a view of storage 22",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("HalfStorage", "22", "K\5",
						   "K\1"))) } } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = legacy_make(cases[i].r, COUNT(cases[i].r));
		struct errmsg err = { "" };
		struct ptfile pt;
		uint8_t *copy;
		const int rc = legacy_open_copy(&b, b.len, &pt, &copy, &err);

		if (rc != cases[i].rc || !strstr(err.text, cases[i].says) ||
		    strncmp(err.text, "model.pt: ", 10) != 0)
			fail_msg("expected %s and \"%s\", got %s and \"%s\"",
				 strerror(-cases[i].rc), cases[i].says,
				 strerror(-rc), err.text);
		free(copy);
		bytebuf_done(&b);
	}
}

static void check_truncations(const struct bytebuf *b, unsigned step)
{
	for (size_t len = 0; len < b->len; len += step) {
		struct errmsg err = { "" };
		struct ptfile pt;
		uint8_t *copy;

		if (legacy_open_copy(b, len, &pt, &copy, &err) != -EBADMSG ||
		    strncmp(err.text, "model.pt: ", 10) != 0)
			fail_msg("%zu of %zu bytes: \"%s\"", len, b->len,
				 err.text);
		free(copy);
	}
}

static void every_truncation_is_refused(void **state)
{
	struct bytebuf b = legacy_make(NULL, 0);
	glob_t g;

	check_truncations(&b, 1);
	bytebuf_done(&b);
	realfiles_glob(&g, "tests/good/legacy_*/*/*.pt");
	for (size_t i = 0; i < g.gl_pathc; i++) {
		b = mkpt_load(g.gl_pathv[i]);
		check_truncations(&b, sampled_step(3));
		bytebuf_done(&b);
	}
	globfree(&g);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(damaged_and_hostile_are_refused),
		cmocka_unit_test(every_truncation_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
