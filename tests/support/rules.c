/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/rules.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "tests/support/unit.h"

struct value *rules_info(struct mkpt *m, const struct entry *v, size_t n)
{
	struct value *const info = mkpt_dict(m);

	for (size_t i = 0; i < n && v[i].list; i++) {
		struct value *const list = mkpt_list(m);

		for (size_t k = 0; k < 3 && v[i].patterns[k]; k++)
			mkpt_add(m, list, mkpt_str(m, v[i].patterns[k]));
		mkpt_set(m, info, v[i].list, list);
	}
	return info;
}

struct merge_rules *rules_new(const struct value *info)
{
	struct merge_rules *r = NULL;
	struct errmsg err = { "" };

	if (merge_rules_new(info, "f", &r, &err))
		fail_msg("%s", err.text);
	return r;
}
