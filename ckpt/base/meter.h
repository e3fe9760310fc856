/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_METER_H
#define UCKPT_METER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A line of the terminal that shows how far long work is, for programs: the library prints
 * nothing.  It appears METER_AFTER_S seconds after meter_start and is then drawn again and
 * again by a thread of its own, so that it also shows that one request takes long.
 *
 *     ucfs: reading shards: 312 of 1,024  0:07 left
 *      43% [============                ]  1.2 GiB of 2.8 GiB  912.4 MiB/s  0:01 left
 *
 * A process has one meter.  Thread-safe, but for meter_start and meter_stop.
 */
#define METER_AFTER_S 2

/* Start it if stderr is a terminal; `program` goes before what is done. */
void meter_start(const char *program);

/* Steps of some kind, such as "reading shards", of which `done` are made; `total` 0: not
 * known. */
void meter_step(const char *what, uint64_t done, uint64_t total);

/* Bytes of `total` that have been read or written. */
void meter_bytes(uint64_t done, uint64_t total);

/* Clears the line of a terminal. */
#define METER_CLEAR "\r\033[K"

/* Clear the line, so that other text starts in the first column.  Nothing is drawn until
 * the next step or byte. */
void meter_clear(void);

/* Clear the line and end the thread. */
void meter_stop(void);

/* The two forms of the line; `rate` is of steps or bytes in a second, 0: not known. */
#define METER_TEXT_MAX 160
void meter_step_text(const char *what, uint64_t done, uint64_t total, double rate,
		     char out[METER_TEXT_MAX]);
void meter_bytes_text(uint64_t done, uint64_t total, double rate, char out[METER_TEXT_MAX]);

#endif
