/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DECIMAL_H
#define UCTRAIN_DECIMAL_H

#define DECIMAL_LEN 32

/* Format a number with the fewest digits, from 15 to 17, that read back as the
 * same number. */
const char *decimal(double v, char buf[DECIMAL_LEN]);

#endif
