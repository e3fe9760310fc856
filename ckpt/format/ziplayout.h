/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ZIPLAYOUT_H
#define UCKPT_ZIPLAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* The data of a record begins on a multiple of it. */
#define ZIPLAYOUT_ALIGNMENT 64

/*
 * What torch's writer puts around a record of `len` bytes whose local header begins at
 * `header`; ptwrite.c has the form.  Lengths are in bytes.
 */

/* The ZIP64 extra field, which is the same in the local header and in the directory. */
size_t ziplayout_zip64_len(uint64_t len, uint64_t header);

/* From the local header to the data, padded to the alignment. */
size_t ziplayout_local_len(size_t name_len, uint64_t len, uint64_t header);

/* The data descriptor of a record that has one. */
size_t ziplayout_descriptor_len(uint64_t len, uint64_t header);

#endif
