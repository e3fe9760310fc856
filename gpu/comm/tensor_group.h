/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TENSOR_GROUP_H
#define UCTRAIN_TENSOR_GROUP_H

struct backend_group;
struct device_group;

/* Make `ranks` a backend's group (backend.h), of number `rank` of `size`.  It must be
 * connected before the group is used, and remain. */
void tensor_group_init(struct backend_group *g, struct device_group *ranks,
		       unsigned rank, unsigned size);

#endif
