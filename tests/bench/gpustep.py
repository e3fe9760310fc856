#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of gpu.sh.

usage: gpustep.py step MODEL BATCH SEQ STEPS    median of the steps' tokens/s
       gpustep.py copy                          GB/s from pinned memory
       gpustep.py rates BATCH                   rates of PyTorch's operations on the GPU

A step uses PyTorch's fastest configuration: a separate GPT-2 under torch.compile, since
Hugging Face's passes a mask when it is compiled, which rules out flash and cuDNN attention;
a vocabulary of a multiple of 128; float32 masters, bfloat16 autocast, clipping, fused AdamW.
"""
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {  # layers, heads, width
    "tiny": (1, 2, 64),
    "gpt2": (12, 12, 768),
    "gpt2-xl": (48, 25, 1600),
}
VOCABULARY, PADDED = 50257, 50304
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fc_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.attn(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).flatten(2))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(PADDED, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.blocks(self.wte(tokens) + self.wpe.weight[:tokens.shape[1]])
        logits = F.linear(self.ln_f(x[:, :-1]), self.wte.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def step(model, batch, seq, steps):
    torch.set_float32_matmul_precision("high")
    net = GPT2(*MODELS[model], seq).to(DEVICE)
    run = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (batch, seq), device=DEVICE)
    rates = []
    for _ in range(steps + 5):  # the first ones compile
        wait()
        start = time.perf_counter()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = run(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        rates.append(batch * seq / (time.perf_counter() - start))
    print("%.1f" % statistics.median(rates[5:]))


def seconds(work, calls=10):
    times = []
    for _ in range(calls + 3):
        wait()
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])


def copy():
    n = 1 << 30
    host = torch.empty(n, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(n, dtype=torch.uint8, device="cuda")
    print("%.2f" % (n / 1e9 / seconds(lambda: device.copy_(host, non_blocking=True), 5)))


def show(name, s, amount, unit):
    print("%-34s %8.3f ms %8.1f %s" % (name, s * 1e3, amount / s, unit), flush=True)


def rates(batch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    on = {"device": DEVICE, "dtype": torch.bfloat16}
    width, heads, seq = (768, 12, 1024) if DEVICE == "cuda" else (64, 2, 32)
    rows = batch * seq
    a = torch.empty((rows, 16 * width), **on)
    b = torch.empty_like(a)
    show("copy", seconds(lambda: b.copy_(a)), 2 * a.nbytes / 1e9, "GB/s")
    for name, m, k, n in (("attn", rows, width, 3 * width), ("attn_proj", rows, width, width),
                          ("fc", rows, width, 4 * width), ("fc_proj", rows, 4 * width, width),
                          ("fc's weights", width, rows, 4 * width),
                          ("head", rows, width, VOCABULARY), ("head, padded", rows, width, PADDED)):
        x, y = torch.randn((m, k), **on), torch.randn((k, n), **on)
        show(name, seconds(lambda: x @ y), 2 * m * k * n / 1e12, "TFLOP/s")
    q, k, v = (torch.randn((batch, heads, seq, width // heads), requires_grad=True, **on)
               for _ in range(3))
    done = 2 * batch * width * seq * seq / 1e12  # two products, half of each
    for name, way in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        def attend():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        try:
            with sdpa_kernel(way):
                out = attend()
                show("attention, " + name, seconds(attend), done, "TFLOP/s")
                back = seconds(lambda: torch.autograd.grad(out, (q, k, v), out, retain_graph=True))
                show("attention's gradient, " + name, back, 2.5 * done, "TFLOP/s")
        except RuntimeError as e:
            print("attention, %s: %s" % (name, str(e).splitlines()[0]))


def main():
    what = sys.argv[1]
    if what == "step":
        step(sys.argv[2], *map(int, sys.argv[3:]))
    elif what == "rates":
        rates(int(sys.argv[2]))
    else:
        copy()


if __name__ == "__main__":
    main()
