/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TENSOR_GROUP_H
#define UCTRAIN_TENSOR_GROUP_H

struct backend;
struct backend_group;
struct comm;

/* Make `comm` the group of a backend whose memory is the host's (backend.h).  It
 * must remain while the group is used. */
void tensor_group_init(struct backend_group *g, struct comm *comm,
		       struct backend *b);

#endif
