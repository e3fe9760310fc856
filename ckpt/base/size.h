/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SIZE_H
#define UCKPT_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* Format a size, as "1.2 GiB", into `buf` and return it. */
#define SIZE_TEXT_LEN 32
const char *size_text(uint64_t bytes, char buf[SIZE_TEXT_LEN]);

/* The same for a number of things, as "1,024". */
const char *count_text(uint64_t n, char buf[SIZE_TEXT_LEN]);

/* The same, as "21.2 M". */
const char *count_short(uint64_t n, char buf[SIZE_TEXT_LEN]);

/* Sizes that users give, at least 1 byte.  False, with `*out` as it was, for other
 * text. */

/* A whole number of bytes, or of K, M, G or T: powers of 1024. */
bool size_parse_binary(const char *text, uint64_t *out);

/* As huggingface_hub takes them: "5GB" or "1.5mb", powers of 1000. */
bool size_parse_decimal(const char *text, uint64_t *out);

#endif
