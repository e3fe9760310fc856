/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TBEVENTS_H
#define UCTRAIN_TBEVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct source;

/*
 * TensorBoard's event files: scalars by tag and step.
 */

/* --- writing --------------------------------------------------------------- */

struct tbevents;

/*
 * Begin a new file in directory `dir`.  It tells readers that what earlier
 * files there say of `first_step` and later no longer holds.
 */
int tbevents_create(struct tbevents **out, const char *dir, uint64_t first_step,
		    struct errmsg *err);

struct tbevents_scalar {
	const char *tag;
	double value; /* kept as float32 */
};

/* Add what is known after a step; it is in the file on return. */
int tbevents_add(struct tbevents *t, uint64_t step,
		 const struct tbevents_scalar *scalars, size_t n,
		 struct errmsg *err);
int tbevents_close(struct tbevents *t, struct errmsg *err);

/* --- reading --------------------------------------------------------------- */

/* Called with each scalar in the order of the file, and with a tag of NULL
 * where what was said of `step` and later no longer holds.  Anything but 0
 * ends reading. */
typedef int (*tbevents_fn)(void *ctx, const char *tag, size_t tag_len,
			   uint64_t step, double value);

/*
 * Read a file as far as it is whole.  Returns 0, also if it ends within a
 * record, as that of a run that was killed does: then `err` has a message
 * (otherwise its text is empty).  -EBADMSG if its beginning is no event file,
 * or for a record whose checksum is wrong; what came before has been told.
 */
int tbevents_read(const struct source *src, tbevents_fn fn, void *ctx,
		  struct errmsg *err);

#endif
