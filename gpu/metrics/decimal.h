/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DECIMAL_H
#define UCTRAIN_DECIMAL_H

#define DECIMAL_LEN 32

/* The decimal with the fewest digits, of 15 to 17, that is read back as the
 * same number. */
const char *decimal(double v, char buf[DECIMAL_LEN]);

#endif
