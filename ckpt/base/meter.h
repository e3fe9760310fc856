/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_METER_H
#define UCKPT_METER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A line of the terminal that shows the progress of long work, for programs: the library prints
 * nothing.  A thread redraws it, starting METER_AFTER_S seconds after meter_start, so that the time
 * also advances during a long request.
 *
 *     ucfs: reading shards: 312 of 1,024  0:07 left
 *      43% [============                ]  1.2 GiB of 2.8 GiB  912.4 MiB/s  0:01 left
 *
 * A process has one meter.  Thread-safe, except for meter_start and meter_stop.
 */
#define METER_AFTER_S 2

/* Start the meter if stderr is a terminal; `program` begins the line. */
void meter_start(const char *program);

/* Report steps of one kind, such as "reading shards": `done` of `total`, which is 0 if unknown. */
void meter_step(const char *what, uint64_t done, uint64_t total);

/* Report bytes of `total` that have been read or written. */
void meter_bytes(uint64_t done, uint64_t total);

/* Clears the line of a terminal. */
#define METER_CLEAR "\r\033[K"

/* Clear the line, so that other text starts in the first column.  Nothing is drawn until
 * the next step or byte. */
void meter_clear(void);

/* Clear the line and end the thread. */
void meter_stop(void);

/* The two forms of the line; `rate` is in steps or bytes per second, 0 if unknown. */
#define METER_TEXT_MAX 160
void meter_step_text(const char *what, uint64_t done, uint64_t total, double rate,
		     char out[METER_TEXT_MAX]);
void meter_bytes_text(uint64_t done, uint64_t total, double rate, char out[METER_TEXT_MAX]);

#endif
