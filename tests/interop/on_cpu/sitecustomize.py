# SPDX-License-Identifier: Apache-2.0
"""Python imports this at start if PYTHONPATH contains its directory: programs written for GPUs
then train with DeepSpeed on several CPU ranks, without changes."""
import os
import sys

os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
if "RANK" in os.environ:
    sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir))
    import accelerate

    import no_shm  # noqa: F401

    # Accelerate does not support DeepSpeed on several CPU ranks.
    accelerate.PartialState._prepare_backend = lambda *_, **__: (
        "gloo", accelerate.DistributedType.MULTI_CPU)
    if any("lightning" in word for word in sys.orig_argv):
        import torch
        from lightning.pytorch import accelerators, strategies

        # Lightning refuses DeepSpeed without a GPU, and DeepSpeed needs a device number.
        cpu = accelerators.CPUAccelerator
        cpu.get_parallel_devices = lambda n: [torch.device("cpu", 0)] * n
        strategies.deepspeed.CUDAAccelerator = cpu
        strategies.deepspeed._validate_device_index_selection = lambda _: None
