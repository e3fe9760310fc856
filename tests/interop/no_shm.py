# SPDX-License-Identifier: Apache-2.0
"""Imported by training scripts for its side effect: it disables DeepSpeed's all-reduce in
shared memory (csrc/cpu/comm/shm.cpp), which it would compile first, and which leaves 67 MB of
each rank in /dev/shm (deepspeed_allreduce_buffer_*) whenever LOCAL_SIZE says that all ranks are
on this machine."""

import importlib

importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
