#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make cases of tests/good: state dicts that a program put together by hand and saved with
torch.distributed.checkpoint.

    make_dcp_by_hand.py OUTPUT

dcp_averaged has averaged weights beside those that the optimizer updated, dcp_one_dict both
in one dict; dcp_buffers has buffers of every kind that torch saves; dcp_kinds and dcp_kinds_frozen
have those that look like parameters, and frozen parameters; dcp_numbered and
dcp_two_dirs have optimizers that number their parameters; dcp_safetensors has files of
safetensors; dcp_*_8bit have states that are not shown; dcp_titan_fused has those of three weights in one.
Needs torch 2.15 and torchao.
"""

import copy
import hashlib
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict
from torch.nn import functional

DECAY = 0.9


def train(model, steps=4):
    average = copy.deepcopy(model)
    betas = torch.tensor(0.9), torch.tensor(0.99)  # tensors, as needed for graph capture
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), betas=betas,
                                  foreach=False)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters()):
                p.mul_(DECAY).add_(q, alpha=1 - DECAY)
    return average, optimizer


def sha256(tensor):
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                          .tobytes()).hexdigest()


def write(output, name, state, model, optimizer, tag="ckpt", **options):
    """Save `state`, or each of its dicts to its own directory if it has no tag."""
    out = os.path.join(output, "dcp_" + name)
    if tag == "ckpt":
        writer = dcp.FileSystemWriter(os.path.join(out, tag), **options)
        dcp.save(state, storage_writer=writer, no_dist=True)
    else:
        for part in state:
            dcp.save(state[part], checkpoint_id=os.path.join(out, tag, part), no_dist=True)
    with open(out + ".digests", "w") as f:
        f.write("tag %s\n" % tag)
        for key, p in model.named_parameters():
            if not p.requires_grad:
                continue
            zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p), "step": 4}
            s = optimizer and optimizer.state.get(p) or zeros
            f.write("shape %s %s\n" % (key, "x".join(map(str, p.shape)) or "-"))
            f.write("truth %s fp32 %s\n" % (key, sha256(p.detach())))
            for kind in ("exp_avg", "exp_avg_sq"):
                f.write("truth %s %s %s\n" % (key, kind, sha256(s[kind])))
            f.write("number %s step %s\n" % (key, "float32 %r" % float(s["step"])
                                             if optimizer else "int 0"))


def make_buffers():
    """Make types without a storage class, unusual orders of elements, and tensors that are not
    plain."""
    return {
        "u16": torch.arange(6).to(torch.uint16),
        "f8": torch.randn(8).to(torch.float8_e4m3fn),
        "e8": torch.rand(8).to(torch.float8_e8m0fnu),
        "c64": torch.randn(3, dtype=torch.complex64),
        "c32": torch.randn(3, dtype=torch.complex32),
        "channels_last": torch.randn(1, 3, 2, 4).to(memory_format=torch.channels_last),
        "turned": torch.arange(15, dtype=torch.int16).reshape(3, 5).t(),
        "flag": torch.tensor(True),
        "empty": torch.empty(3, 0),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "quantized": torch.quantize_per_tensor(torch.randn(4), 0.1, 3, torch.quint8),
    }


class Kinds(torch.nn.Module):
    """Has buffers that look like parameters; if `frozen`, parameters that are not trained; if
    `floats`, a buffer that differs from them only in not being cut."""

    def __init__(self, frozen, floats):
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.norm.running_mean.uniform_()
        self.attn = torch.nn.Module()  # named as in minGPT and GPT-2
        self.attn.register_buffer("bias", torch.ones(1, 1, 4, 4).tril())
        self.attn.register_buffer("masked_bias", torch.tensor(-1e4))
        self.attn.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.head = torch.nn.Linear(4, 6)
        if floats:
            self.register_buffer("positions", torch.rand(5, 4))
        if frozen:
            self.layers[0].requires_grad_(False)
            self.token = torch.nn.Parameter(torch.rand(1, 4), requires_grad=False)

    def trained(self):
        return [p for p in self.parameters() if p.requires_grad]

    def forward(self, ids):
        x = self.embed(ids) + getattr(self, "positions", 0) + getattr(self, "token", 0)
        x = self.norm.eval()(x.transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            x = x + torch.tanh(layer(x @ self.attn.bias[0, 0]))
        return functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())

    def kinds(self):
        """Return lines of digests."""
        return (["buffer %s" % name for name, _ in self.named_buffers()] +
                ["frozen %s" % name for name, p in self.named_parameters() if not p.requires_grad])


def make_kinds(output):
    for name, options in ("kinds", (False, True)), ("kinds_frozen", (True, False)):
        torch.manual_seed(1)
        model = Kinds(*options)
        optimizer = torch.optim.AdamW(model.trained(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randint(6, (6, 5))).backward()
            optimizer.step()
        weights, states = get_state_dict(model, optimizer)
        write(output, name, {"model": weights, "optim": states}, model, optimizer)
        with open(os.path.join(output, "dcp_%s.digests" % name), "a") as f:
            f.write("\n".join(model.kinds()) + "\n")


class Net(torch.nn.Module):
    """Has tied names, buffers with the shapes of parameters, and a part that is never trained."""

    def __init__(self, norm, spare):
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.norm = norm(4)
        self.out = torch.nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight
        if spare:
            self.spare = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.norm(self.embed(x)))


def train_net(norm, spare):
    model = Net(norm, spare)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(model.parameters() if spare else groups, lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randint(6, (5,))).pow(2).mean().backward()
        optimizer.step()
    return model, optimizer


def with_lead(lead, state):
    return {lead + k: v for k, v in state.items()}


def refused(output, name, state, model):
    out = os.path.join(output, "dcp_" + name)
    dcp.save(state, checkpoint_id=os.path.join(out, "ckpt"), no_dist=True)
    with open(out + ".digests", "w") as f:
        f.write("tag ckpt\nrefuse optimizer\n")
        for key, p in model.named_parameters():
            f.write("weight %s fp32 %s\n" % (key, sha256(p.detach())))


def split_heads(fused, heads, head):
    """Does what FusedQKVLinear of torchtitan 0.3 does when its state is saved."""
    rows = fused.unflatten(0, (heads, -1, head))
    parts = rows[:, :-2], rows[:, -2], rows[:, -1]
    return [p.reshape(-1, *fused.shape[1:]).contiguous() for p in parts]


def make_fused(output):
    """Has two heads of three rows, each for two heads of queries."""
    model = torch.nn.ModuleDict({"qkv_linear": torch.nn.ModuleDict({
        "wqkv": torch.nn.Linear(5, 24)})})
    q_norm = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([*model.parameters(), q_norm], lr=0.01)
    layer = model["qkv_linear"]["wqkv"]
    for _ in range(4):
        optimizer.zero_grad()
        (layer(torch.randn(4, 5)).unflatten(1, (-1, 3)) * q_norm).pow(2).mean().backward()
        optimizer.step()
    weights, state, truth = {}, {}, {}
    for name, p in (("weight", layer.weight), ("bias", layer.bias)):
        tensors = {"fp32": p.detach(), **optimizer.state[p]}
        state["layers.0.attention.qkv_linear.wqkv." + name] = dict(optimizer.state[p])
        for kind in ("fp32", "exp_avg", "exp_avg_sq"):
            for part, t in zip("qkv", split_heads(tensors[kind], 2, 3)):
                key = "layers.0.attention.qkv_linear.w%s.%s" % (part, name)
                truth[key, kind] = t
                if kind == "fp32":
                    weights[key] = t
    weights["layers.0.attention.q_norm.weight"] = q_norm.detach()
    state["layers.0.attention.q_norm.weight"] = dict(optimizer.state[q_norm])
    groups = [{"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01,
               "params": list(state)}]
    out = os.path.join(output, "dcp_titan_fused")
    dcp.save({**weights, "optimizer": {"state": state, "param_groups": groups}},
             checkpoint_id=os.path.join(out, "step-4"), no_dist=True)
    with open(out + ".digests", "w") as f:
        f.write("tag step-4\n")
        for (key, kind), t in truth.items():
            f.write("truth %s %s %s\n" % (key, kind, sha256(t)))
            if kind == "fp32":
                f.write("shape %s %s\n" % (key, "x".join(map(str, t.shape))))
                f.write("number %s step float32 4.0\n" % key)


def make_8bit(output):
    """Make 8-bit states: torchao's have their own tensor class, and small ones are plain;
    bitsandbytes (optim/optimizer.py) has codes, and scales of blocks."""
    torch.compile = lambda f=None, **options: f or (lambda g: g)
    from torchao.optim import AdamW8bit
    model = torch.nn.Linear(64, 64)
    optimizer = AdamW8bit(model.parameters(), lr=0.01)
    model(torch.randn(5, 64)).pow(2).mean().backward()
    optimizer.step()
    weights, states = get_state_dict(model, optimizer)
    refused(output, "torchao_8bit", {"model": weights, "optim": states}, model)

    model = torch.nn.Linear(16, 16)
    states = {"state": {i: {"step": 3, "state1": torch.zeros(p.shape, dtype=torch.uint8),
                            "state2": torch.zeros(p.shape, dtype=torch.uint8),
                            "qmap1": torch.rand(256), "qmap2": torch.rand(256),
                            "absmax1": torch.rand(1), "absmax2": torch.rand(1)}
                        for i, p in enumerate(model.parameters())},
              "param_groups": [{"lr": 0.01, "betas": (0.9, 0.99), "params": [0, 1]}]}
    refused(output, "bitsandbytes_8bit", {"model": model.state_dict(), "optim": states}, model)


def main(output):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    average, optimizer = train(model)
    weights, states = get_state_dict(model, optimizer)
    write(output, "averaged",
          {"app": {"ema": average.state_dict(), "model": weights, "optim": states}},
          model, optimizer)
    print("# ema bias", sha256(average.bias.detach()))

    model = torch.nn.Linear(4, 3)
    optimizer = train(model)[1]
    buffers = make_buffers()
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    weights, states = get_state_dict(model, optimizer)
    write(output, "buffers", {"model": weights, "optim": states}, model, optimizer)
    with open(os.path.join(output, "dcp_buffers", "buffers"), "w") as f:
        for name, b in buffers.items():
            whole = not (b.is_quantized or b.is_conj())
            f.write("%s %d %s\n" % (name, b.nbytes, sha256(b) if whole else "-"))

    model, optimizer = train_net(torch.nn.BatchNorm1d, False)
    write(output, "numbered", {"net": with_lead("module.", model.state_dict()),
                               "optimizer": optimizer.state_dict()}, model, optimizer)
    model, optimizer = train_net(torch.nn.LayerNorm, True)
    # Save like torch 2.3.
    _version._derived_version = "2_3"
    write(output, "two_dirs", {"model": torch.compile(model).state_dict(),
                               "optimizer": optimizer.state_dict()}, model, optimizer, "step_4")
    _version._derived_version = None
    model, optimizer = train_net(torch.nn.LayerNorm, True)
    average = {k: 0.9 * v for k, v in model.state_dict().items()}
    state = with_lead("ema.", average)
    state.update(with_lead("model.", model.state_dict()))
    state["optim"] = get_optimizer_state_dict(model, optimizer)
    write(output, "one_dict", state, model, optimizer)
    weights = {k: v for k, v in model.state_dict().items() if k != "out.weight"}
    write(output, "safetensors", weights, model, None,
          serialization_format=SerializationFormat.SAFETENSORS)
    make_8bit(output)
    make_fused(output)
    make_kinds(output)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
