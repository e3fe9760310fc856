#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Save the runs of tests/good with buffers and frozen parameters of odd types and forms.

    make_odd.py COLLECTION [CASE...]

  buffers   of types that torch has no storage class for, complex, strided, without elements,
            conjugated when read, sparse and quantized
  frozen    frozen parameters of such types, one of them transposed
  layers    a pipeline of two stages with frozen layers and buffers

For each case a .digests file has the tag, `truth` lines for tensors of real numbers, and `weight`
lines for those that no universal tree has.
make_weights.py makes the .weights files.
"""

import hashlib
import os
import shutil
import socket
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.multiprocessing
import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule

TAG = "global_step2"
CASES = {"z0_odd_dp2": ("buffers", 0), "z1_odd_dp2": ("buffers", 1), "z3_odd_dp2": ("buffers", 3),
         "z2_odd_frozen_dp2": ("frozen", 2), "pp2_dp1_z1_frozen": ("layers", 1), "pp2_dp1_z0_frozen": ("layers", 0)}
TYPES = ("float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64"
         " complex64 complex32").split()


def add_buffers(m):
    g = torch.Generator().manual_seed(7)
    for name in TYPES:
        x = torch.randint(0, 100, (16,), dtype=torch.uint8, generator=g)
        m.register_buffer(name, x.view(getattr(torch, name)).view(2, -1))
    x = torch.randn(96, generator=g)
    m.register_buffer("complex128", torch.randn(3, dtype=torch.complex128, generator=g))
    m.register_buffer("turned", x[:24].view(6, 4).clone().t())
    m.register_buffer("turned8", x[:24].view(6, 4).to(torch.float8_e4m3fn).t())
    m.register_buffer("image", x[:48].view(2, 3, 2, 4).to(memory_format=torch.channels_last))
    m.register_buffer("spread", x[:3].clone().expand(4, 3))
    m.register_buffer("gaps", x[:64].view(8, 8).clone()[::2, 1:7:3])
    m.register_buffer("conjugated", x[:6].view(3, 2).clone().view(torch.complex64).conj())
    m.register_buffer("empty", torch.empty(0, 4))
    m.register_buffer("empty16", torch.empty(3, 0, dtype=torch.uint16))
    m.register_buffer("sparse", torch.eye(3).to_sparse())
    m.register_buffer("quantized", torch.quantize_per_tensor(x[:4], 0.1, 3, torch.qint32))


def change_frozen(m):
    """Runs after DeepSpeed's broadcast, for which gloo lacks some types."""
    m.f8.data = m.f8.data.to(torch.float8_e4m3fn)
    m.turned.data = m.turned.data.t().contiguous().t()
    m.u16.data = m.u16.data.to(torch.uint16)
    m.wave.data = m.wave.data.to(torch.complex64)


class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 5)
        self.head = torch.nn.Linear(5, 7)
        for name in ("f8", "turned", "u16", "wave") if kind == "frozen" else ():
            self.register_parameter(name, torch.nn.Parameter(torch.arange(15.0).view(3, 5), requires_grad=False))

    def forward(self, ids):
        return torch.nn.functional.cross_entropy(self.head(self.embed(ids)), ids)


class Layer(torch.nn.Linear):
    def __init__(self, frozen):
        super().__init__(5, 5)
        self.requires_grad_(not frozen)
        self.register_buffer("mask", torch.arange(3, dtype=torch.float32))


class Embed(torch.nn.Embedding):
    def __init__(self):
        super().__init__(7, 5)
        self.requires_grad_(False)


def pipeline(stage):
    # Without ZeRO a frozen layer cannot be distinguished from a trained one of the same shapes.
    layers = [LayerSpec(Embed), lambda x: x * 1.0, LayerSpec(Layer, False), LayerSpec(Layer, stage > 0),
              LayerSpec(Layer, False), LayerSpec(torch.nn.Linear, 5, 7)]
    return PipelineModule(layers=layers, num_stages=2, partition_method="uniform",
                          loss_fn=lambda x, ids: torch.nn.functional.cross_entropy(x, ids))


def save(rank, out, kind, stage, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.manual_seed(1)
    deepspeed.init_distributed("gloo")
    model = pipeline(stage) if kind == "layers" else Net(kind)
    engine = deepspeed.initialize(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}})[0]
    for step in range(2):
        ids = torch.tensor([step, 3, rank, 6])
        if kind == "layers":
            engine.train_batch(iter([(ids, ids)]))
        else:
            engine.backward(engine(ids))
            engine.step()
    if kind == "buffers":
        add_buffers(engine.module)
    if kind == "frozen":
        change_frozen(engine.module)
    engine.save_checkpoint(out, tag=TAG)
    lines = []
    trained = [name for name, p in engine.module.named_parameters() if p.requires_grad]
    # The converter includes the module's tensors at stages 1 and 2.
    word = "weight" if kind == "layers" else "truth" if stage < 3 else None
    for name, t in engine.module.state_dict().items():
        odd = t.layout != torch.strided or t.is_quantized or t.is_complex()
        if word and name not in trained and not odd:
            data = t.float().contiguous().numpy().tobytes()
            lines.append("%s %s fp32 %s\n" % (word, name, hashlib.sha256(data).hexdigest()))
    every = [None, None]
    torch.distributed.all_gather_object(every, lines)
    if rank == 0:
        lines = every[0] + every[1] if kind == "layers" else lines
        with open(out + ".digests", "w", encoding="utf-8") as f:
            f.write("tag %s\n" % TAG + "".join(sorted(lines)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or CASES:
        out = os.path.join(sys.argv[1], name)
        shutil.rmtree(out, ignore_errors=True)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        torch.multiprocessing.spawn(save, (out, *CASES[name], port), nprocs=2)
        for script in "zero_to_fp32.py", "zero_to_torch.py":
            if os.path.exists(os.path.join(out, script)):
                os.unlink(os.path.join(out, script))


if __name__ == "__main__":
    main()
