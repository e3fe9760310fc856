/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Torch's container without zip: small files are put together from their
 * parts, one of which is replaced.  That files of torch itself are read, and
 * give the same tree as zip files do, test_good shows.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/bytebuf.h"
#include "ckpt/bytes.h"
#include "ckpt/errmsg.h"
#include "ckpt/pickle.h"
#include "ckpt/ptfile.h"
#include "ckpt/value.h"
#include "tests/mkpt.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#define BYTES(s)                                        \
	{                                               \
		(const uint8_t *)(s), sizeof(s) - 1     \
	}

/* Octal escapes throughout: they end after three digits. */
#define MAGIC "\200\2\212\12\154\374\234F\371 j\250P\31."
#define PROTOCOL "\200\2M\351\3."
#define SYS_INFO(endian)                                              \
	"\200\2}(X\20\0\0\0protocol_versionM\351\3X\15\0\0\0"         \
	"little_endian" endian "u."
#define TRUE "\210"
#define FALSE "\211"

/* The pickle of a persistent id; `key` has two characters. */
#define STORAGE_ID(class, key, numel, view)                              \
	"(X\7\0\0\0storagectorch\n" class "\nX\2\0\0\0" key "X\3\0\0\0"  \
	"cpu" numel view "t"
#define STORAGE(class, key, numel, view) \
	STORAGE_ID(class, key, numel, view) "Q"
#define ROOT "N"
#define VIEW(key, offset, numel) "X\2\0\0\0" key offset numel "\207"

/* A vector of `n` elements from `offset`. */
#define TENSOR(storage, offset, n)                                          \
	"ctorch._utils\n_rebuild_tensor_v2\n(" storage offset n "\205K\1"   \
	"\205\211ccollections\nOrderedDict\n)RtR"

/* An object of the two tensors a and b. */
#define OBJECT(a, b) "\200\2}(X\1\0\0\0a" a "X\1\0\0\0b" b "u."
#define FLOATS TENSOR(STORAGE("FloatStorage", "11", "K\4", ROOT), "K\1", "K\3")
#define HALVES TENSOR(STORAGE("HalfStorage", "22", "K\5", ROOT), "K\0", "K\5")

#define KEY(key) "X\2\0\0\0" key
#define KEYS(keys) "\200\2](" keys "e."

#define U64(low) low "\0\0\0\0\0\0\0"
#define DATA_11 U64("\4") "aaaabbbbccccdddd"
#define DATA_22 U64("\5") "eeffgghhii"

enum part { PART_MAGIC, PART_VERSION, PART_SYS_INFO, PART_OBJECT, PART_KEYS,
	    PART_DATA, PARTS };

static const struct span good[PARTS] = {
	[PART_MAGIC] = BYTES(MAGIC),
	[PART_VERSION] = BYTES(PROTOCOL),
	[PART_SYS_INFO] = BYTES(SYS_INFO(TRUE)),
	[PART_OBJECT] = BYTES(OBJECT(FLOATS, HALVES)),
	[PART_KEYS] = BYTES(KEYS(KEY("11") KEY("22"))),
	[PART_DATA] = BYTES(DATA_11 DATA_22),
};

struct replaced {
	enum part part;
	struct span by;
};

/* The good file with up to three parts replaced. */
static struct bytebuf make(const struct replaced *r, size_t n)
{
	struct bytebuf b = { 0 };

	for (unsigned i = 0; i < PARTS; i++) {
		struct span s = good[i];

		for (size_t k = 0; k < n; k++)
			if (r[k].by.p && r[k].part == i)
				s = r[k].by;
		bytebuf_add(&b, s.p, s.len);
	}
	return b;
}

/* Open a copy that ends where the file does. */
static int open_copy(const struct bytebuf *b, size_t len, struct ptfile *pt,
		     uint8_t **copy, struct errmsg *err)
{
	struct source src;

	*copy = malloc(len ? len : 1);
	memcpy(*copy, b->data, len);
	source_init_span(&src, "model.pt", (struct span){ *copy, len });
	return ptfile_open_source(pt, &src, err);
}

/* The bytes of the tensor under `key`, as a string. */
static void tensor_text(const struct ptfile *pt, const char *key, char *out)
{
	struct errmsg err = { "" };
	struct tensor t;
	uint64_t at;

	if (ptfile_tensor(pt, value_find(pt->root, key), key, &t, &at, &err))
		fail_msg("%s", err.text);
	assert_true(t.numel < 16);

	const size_t elem = dtype_size(t.dtype);

	assert_int_equal(source_read(&pt->src, out, t.numel * elem,
				     at + t.storage_offset * elem, NULL),
			 0);
	out[t.numel * elem] = '\0';
}

/* --- good files ------------------------------------------------------------ */

static void tensors_are_found(void **state)
{
	static const struct {
		const char *name;
		const char *a, *b;
		struct replaced r[3];
	} cases[] = {
		{ "as torch writes it", "bbbbccccdddd", "eeffgghhii", { { 0 } } },
		{ "protocol 4",
		  "bbbbccccdddd",
		  "eeffgghhii",
		  { { PART_MAGIC,
		      BYTES("\200\4\225\15\0\0\0\0\0\0\0\212\12\154\374\234F"
			    "\371 j\250P\31.") } } },
		{ "keys in another order",
		  "bbbbccccdddd",
		  "eeffgghhii",
		  { { PART_KEYS, BYTES(KEYS(KEY("22") KEY("11"))) },
		    { PART_DATA, BYTES(DATA_22 DATA_11) } } },
		{ "one storage of two tensors",
		  "bbbbccccdddd",
		  "aaaabbbb",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   TENSOR(STORAGE("FloatStorage", "11", "K\4",
						  ROOT),
					  "K\0", "K\2"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		/* What comes first decides in what elements are counted. */
		{ "one storage of two types",
		  "bbbbccccdddd",
		  "aaaabbbb",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   TENSOR(STORAGE("ByteStorage", "11", "K\20",
						  ROOT),
					  "K\0", "K\10"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		{ "views",
		  "bbbbcccc",
		  "dddd",
		  { { PART_OBJECT,
		      BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11", "K\4",
						  VIEW("33", "K\1", "K\2")),
					  "K\0", "K\2"),
				   TENSOR(STORAGE("FloatStorage", "11", "K\4",
						  VIEW("44", "K\2", "K\2")),
					  "K\1", "K\1"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		{ "one view twice",
		  "bbbb",
		  "cccc",
		  { { PART_OBJECT,
		      BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11", "K\4",
						  VIEW("33", "K\1", "K\2")),
					  "K\0", "K\1"),
				   TENSOR(STORAGE("FloatStorage", "11", "K\4",
						  VIEW("33", "K\1", "K\2")),
					  "K\1", "K\1"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		{ "one tuple twice",
		  "bbbb",
		  "cccc",
		  { { PART_OBJECT,
		      BYTES(OBJECT(
			      TENSOR(STORAGE_ID("FloatStorage", "11", "K\4",
						VIEW("33", "K\1", "K\2"))
				     "q\1Q",
				     "K\0", "K\1"),
			      TENSOR("h\1Q", "K\1", "K\1"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		{ "an empty storage",
		  "",
		  "eeffgghhii",
		  { { PART_OBJECT,
		      BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11", "K\0",
						  ROOT),
					  "K\0", "K\0"),
				   HALVES)) },
		    { PART_DATA, BYTES(U64("\0") DATA_22) } } },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = make(cases[i].r, COUNT(cases[i].r));
		struct errmsg err = { "" };
		struct ptfile pt;
		uint8_t *copy;
		char text[256];

		if (open_copy(&b, b.len, &pt, &copy, &err))
			fail_msg("%s: %s", cases[i].name, err.text);
		assert_false(pt.is_zip);
		tensor_text(&pt, "a", text);
		assert_string_equal(text, cases[i].a);
		tensor_text(&pt, "b", text);
		assert_string_equal(text, cases[i].b);
		ptfile_close(&pt);
		free(copy);
		bytebuf_done(&b);
	}
}

static void a_file_without_tensors_is_read(void **state)
{
	static const struct replaced r[] = {
		{ PART_OBJECT, BYTES("\200\2K\7.") },
		{ PART_KEYS, BYTES("\200\2].") },
		{ PART_DATA, BYTES("") },
	};
	struct bytebuf b = make(r, COUNT(r));
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;
	uint64_t at;

	(void)state;
	assert_int_equal(open_copy(&b, b.len, &pt, &copy, &err), 0);
	assert_int_equal(pt.root->i, 7);
	assert_int_equal(ptfile_storage(&pt, "0", 0, &at, &err), -EBADMSG);
	assert_string_equal(err.text, "model.pt: storage 0 is missing");
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&b);
}

/* Lengths that a tensor does not ask for are checked, too. */
static void storages_know_their_lengths(void **state)
{
	struct bytebuf b = make(NULL, 0);
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;
	uint64_t at = 0;

	(void)state;
	assert_int_equal(open_copy(&b, b.len, &pt, &copy, &err), 0);
	assert_int_equal(ptfile_storage(&pt, "22", 10, &at, &err), 0);
	assert_int_equal(at, b.len - 10);
	assert_int_equal(ptfile_storage(&pt, "22", 11, &at, &err), -EBADMSG);
	assert_string_equal(err.text, "model.pt: storage 22 has 10 bytes, its"
				      " tensors need 11");
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&b);
}

/* ('module', class, file, source) is the class. */
static void a_class_with_its_source_is_the_class(void **state)
{
	static const struct replaced r = {
		PART_OBJECT,
		BYTES(OBJECT(FLOATS, HALVES "X\1\0\0\0c(X\6\0\0\0modulecmy.net\n"
			     "Net\nX\6\0\0\0net.pyX\4\0\0\0passtQ")),
	};
	struct bytebuf b = make(&r, 1);
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;

	(void)state;
	if (open_copy(&b, b.len, &pt, &copy, &err))
		fail_msg("%s", err.text);
	assert_true(value_is_global(value_find(pt.root, "c"), "my.net", "Net"));
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&b);
}

/* Written again, the storages are numbered and a view stands for itself. */
static void what_is_read_can_be_written(void **state)
{
	static const struct replaced r = {
		PART_OBJECT,
		BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11", "K\4",
					    VIEW("33", "K\1", "K\2")),
				    "K\0", "K\2"),
			     HALVES)),
	};
	static const struct span first =
		BYTES("X\1\0\0\0"
		      "0q\5X\3\0\0\0cpuq\6K\2tq\7Q");
	struct bytebuf b = make(&r, 1), out = { 0 };
	struct pickle_storages s = { 0 };
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;

	(void)state;
	if (open_copy(&b, b.len, &pt, &copy, &err) ||
	    pickle_dump(pt.root, &out, &s, &err))
		fail_msg("%s", err.text);
	assert_int_equal(s.n, 2);
	assert_non_null(memmem(out.data, out.len, first.p, first.len));
	pickle_storages_done(&s);
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&out);
	bytebuf_done(&b);
}

/* --- windows and files ------------------------------------------------------ */

static char path[] = "/tmp/ucfs-legacy-XXXXXX";

/* A string of `len` bytes in front of the good object's tensors. */
static struct bytebuf make_long(uint32_t len)
{
	const uint8_t size[] = { (uint8_t)len, (uint8_t)(len >> 8),
				 (uint8_t)(len >> 16), (uint8_t)(len >> 24) };
	const struct span object = good[PART_OBJECT];
	struct bytebuf o = { 0 }, b;

	bytebuf_add(&o, object.p, 4);
	bytebuf_add(&o, "X\1\0\0\0sX", 7);
	bytebuf_add(&o, size, 4);
	bytebuf_add_fill(&o, 's', len);
	bytebuf_add(&o, object.p + 4, object.len - 4);
	b = make(&(struct replaced){ PART_OBJECT, { o.data, o.len } }, 1);
	bytebuf_done(&o);
	return b;
}

static void check_long(uint32_t len)
{
	struct bytebuf b = make_long(len);
	struct errmsg err = { "" };
	struct ptfile pt;
	char text[256];

	mkpt_save(path, b.data, b.len);
	if (ptfile_open(&pt, path, &err))
		fail_msg("%u: %s", len, err.text);
	assert_int_equal(value_find(pt.root, "s")->str.len, len);
	tensor_text(&pt, "b", text);
	assert_string_equal(text, "eeffgghhii");
	ptfile_close(&pt);
	bytebuf_done(&b);
}

/* Pickles that end around the places where the window grows. */
static void long_pickles_are_read_whole(void **state)
{
	struct bytebuf short_one = make(NULL, 0);
	const size_t rest = short_one.len + 11;

	(void)state;
	bytebuf_done(&short_one);
	for (uint32_t d = 0; d < 2 * rest; d += 7)
		check_long((1 << 20) - d);
	check_long((1 << 22) - 300);
	check_long(5000000);
}

/* The elements of a storage are not read: of this file, nearly all is a hole
 * that would take long to read. */
static void storages_are_stepped_over(void **state)
{
	static const uint64_t numel = UINT64_C(1) << 33;
	static const struct replaced r[] = {
		{ PART_OBJECT,
		  BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11",
					      "\212\5\0\0\0\0\2", ROOT),
				      "K\1", "K\3"),
			       HALVES)) },
		{ PART_DATA, BYTES("\0\0\0\0\2\0\0\0") },
	};
	struct bytebuf b = make(r, COUNT(r)), last = { 0 };
	struct errmsg err = { "" };
	struct ptfile pt;
	char text[256];
	int fd;

	(void)state;
	mkpt_save(path, b.data, b.len);
	bytebuf_add(&last, DATA_22, sizeof(DATA_22) - 1);
	fd = open(path, O_WRONLY);
	if (pwrite(fd, last.data, last.len, (off_t)(b.len + 4 * numel)) !=
	    (ssize_t)last.len) {
		print_message("skipped: no file of 32 GiB here\n");
		close(fd);
		bytebuf_done(&last);
		bytebuf_done(&b);
		skip();
	}
	close(fd);
	if (ptfile_open(&pt, path, &err))
		fail_msg("%s", err.text);
	tensor_text(&pt, "b", text);
	assert_string_equal(text, "eeffgghhii");
	ptfile_close(&pt);
	bytebuf_done(&last);
	bytebuf_done(&b);
}

/* --- bad files -------------------------------------------------------------- */

static void damaged_and_hostile_are_refused(void **state)
{
	static const struct {
		int rc;
		const char *says;
		struct replaced r[3];
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
		{ -EBADMSG, "storage 33 is nobody's",
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
		{ -ENOTSUP, "storage of unknown type torch.QInt8Storage",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("QInt8Storage", "22", "K\5",
						   ROOT))) } } },
		{ -EBADMSG, "storage 11 has 16 bytes and 20",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("FloatStorage", "11", "K\5",
						   ROOT))) } } },
		/* Views. */
		{ -EBADMSG, "malformed view of storage 22",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, STORAGE("HalfStorage", "22", "K\5",
						   "K\1"))) } } },
		{ -EBADMSG, "malformed view of storage 22",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   STORAGE("HalfStorage", "22", "K\5",
					   VIEW("33", "J\377\377\377\377",
						"K\1")))) } } },
		{ -EBADMSG, "view 33 does not lie within storage 22",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   STORAGE("HalfStorage", "22", "K\5",
					   VIEW("33", "K\3", "K\3")))) } } },
		{ -EBADMSG, "view 33 does not lie within storage 22",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   STORAGE("HalfStorage", "22", "K\5",
					   VIEW("33",
						"\212\10\377\377\377\377\377"
						"\377\377\177",
						"K\1")))) } } },
		{ -EBADMSG, "storage 11 is there twice",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS,
				   STORAGE("HalfStorage", "22", "K\5",
					   VIEW("11", "K\0", "K\5")))) } } },
		{ -EBADMSG, "storage 33 is there twice",
		  { { PART_OBJECT,
		      BYTES(OBJECT(STORAGE("FloatStorage", "11", "K\4",
					   VIEW("33", "K\0", "K\1")),
				   STORAGE("HalfStorage", "22", "K\5",
					   VIEW("33", "K\0", "K\2")))) } } },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = make(cases[i].r, COUNT(cases[i].r));
		struct errmsg err = { "" };
		struct ptfile pt;
		uint8_t *copy;
		const int rc = open_copy(&b, b.len, &pt, &copy, &err);

		if (rc != cases[i].rc || !strstr(err.text, cases[i].says) ||
		    strncmp(err.text, "model.pt: ", 10) != 0)
			fail_msg("expected %s and \"%s\", got %s and \"%s\"",
				 strerror(-cases[i].rc), cases[i].says,
				 strerror(-rc), err.text);
		free(copy);
		bytebuf_done(&b);
	}
}

static void check_truncations(const struct bytebuf *b)
{
	for (size_t len = 0; len < b->len; len++) {
		struct errmsg err = { "" };
		struct ptfile pt;
		uint8_t *copy;

		if (open_copy(b, len, &pt, &copy, &err) != -EBADMSG ||
		    strncmp(err.text, "model.pt: ", 10) != 0)
			fail_msg("%zu of %zu bytes: \"%s\"", len, b->len,
				 err.text);
		free(copy);
	}
}

static void every_truncation_is_refused(void **state)
{
	const char *const srcdir = getenv("top_srcdir");
	struct bytebuf b = make(NULL, 0);
	char pattern[4096];
	glob_t g;

	(void)state;
	check_truncations(&b);
	bytebuf_done(&b);
	snprintf(pattern, sizeof(pattern), "%s/tests/good/legacy_*/*/*.pt",
		 srcdir ? srcdir : ".");
	assert_int_equal(glob(pattern, 0, NULL, &g), 0);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		b = mkpt_load(g.gl_pathv[i]);
		check_truncations(&b);
		bytebuf_done(&b);
	}
	globfree(&g);
}

static int make_path(void **state)
{
	const int fd = mkstemp(path);

	(void)state;
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

static int remove_path(void **state)
{
	(void)state;
	return unlink(path);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensors_are_found),
		cmocka_unit_test(a_file_without_tensors_is_read),
		cmocka_unit_test(storages_know_their_lengths),
		cmocka_unit_test(a_class_with_its_source_is_the_class),
		cmocka_unit_test(what_is_read_can_be_written),
		cmocka_unit_test(long_pickles_are_read_whole),
		cmocka_unit_test(storages_are_stepped_over),
		cmocka_unit_test(damaged_and_hostile_are_refused),
		cmocka_unit_test(every_truncation_is_refused),
	};

	return cmocka_run_group_tests(tests, make_path, remove_path);
}
