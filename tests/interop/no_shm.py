# SPDX-License-Identifier: Apache-2.0
"""Imported for its effect by whoever trains: DeepSpeed does without its all-reduce in
shared memory (csrc/cpu/comm/shm.cpp), which it would compile first, and which leaves
67 MB of each rank in /dev/shm (deepspeed_allreduce_buffer_*) whenever LOCAL_SIZE says
that all ranks are on this machine."""

import importlib

importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
