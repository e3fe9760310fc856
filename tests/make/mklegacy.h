/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MKLEGACY_H
#define TESTS_MKLEGACY_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"

struct errmsg;
struct ptfile;

/*
 * Torch's container before zip, assembled from parts, some of which a test replaces.
 */

#define BYTES(s)                                        \
	{                                               \
		(const uint8_t *)(s), sizeof(s) - 1     \
	}

/* Octal escapes, which end after three digits. */
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

enum legacy_part {
	PART_MAGIC,
	PART_VERSION,
	PART_SYS_INFO,
	PART_OBJECT,
	PART_KEYS,
	PART_DATA,
	PARTS
};

/* An object {a: tensor, b: tensor}. */
extern const struct span legacy_good[PARTS];

struct legacy_replaced {
	enum legacy_part part;
	struct span by;
};

/* Make the good file with `n` parts replaced. */
struct bytebuf legacy_make(const struct legacy_replaced *r, size_t n);

/* Open a copy that ends where the file does, after `len` bytes; free it. */
int legacy_open_copy(const struct bytebuf *b, size_t len, struct ptfile *pt,
		     uint8_t **copy, struct errmsg *err);

#endif
