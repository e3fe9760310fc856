/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/metrics/decimal.h"

#include <stdio.h>
#include <stdlib.h>

const char *decimal(double v, char buf[DECIMAL_LEN])
{
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(buf, DECIMAL_LEN, "%.*g", digits, v);
		if (strtod(buf, NULL) == v)
			break;
	}
	return buf;
}
