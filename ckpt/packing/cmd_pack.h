/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_PACK_H
#define UCKPT_CMD_PACK_H

struct uckpt;

int cmd_pack(struct uckpt *u, int argc, char **argv);
int cmd_unpack(struct uckpt *u, int argc, char **argv);

#endif
