/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_PACK_H
#define UCKPT_CMD_PACK_H

int cmd_pack(int argc, char **argv);
int cmd_unpack(int argc, char **argv);

#endif
