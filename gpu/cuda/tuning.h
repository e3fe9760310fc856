/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TUNING_H
#define UCTRAIN_TUNING_H

#include <stdint.h>

struct errmsg;

/*
 * A file of choices that were measured, by problem.  A key is a line of text that
 * says all that the choice depends on: the device, the library's version, the
 * shape.  A file may have those of many devices and versions.
 */
struct tuning;

#define TUNING_CHOICE 64 /* bytes of a choice */

/*
 * Read the file at `path`.  One that does not exist has no choices.  *out is
 * always set unless memory runs out:
 * -EBADMSG  damaged: it has no choices, and is replaced
 * others    another program's file, or unreadable: it has no choices, and is
 *           never written
 */
int tuning_open(struct tuning **out, const char *path, struct errmsg *err);
void tuning_close(struct tuning *t);

/* The choice for a key, or NULL. */
const uint8_t *tuning_find(const struct tuning *t, const char *key);

/* Set the choice for a key. -ENOMEM. */
int tuning_set(struct tuning *t, const char *key,
	       const uint8_t choice[TUNING_CHOICE], struct errmsg *err);

/* Write what was set since the last call, together with what others have added
 * to the file meanwhile; the file changes as a whole or not at all. */
int tuning_save(struct tuning *t, struct errmsg *err);

#endif
