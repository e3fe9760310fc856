#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of gpu.sh.

usage: gpustep.py step MODEL BATCH SEQ STEPS    median of the steps' tokens/s
       gpustep.py copy                          GB/s from pinned memory

Steps are those of Hugging Face's GPT2LMHeadModel under torch.compile, float32
masters and bfloat16 autocast, fused AdamW.
"""
import statistics
import sys
import time

import torch

MODELS = {  # n_layer, n_head, n_embd
    "gpt2": (12, 12, 768),
    "gpt2-xl": (48, 25, 1600),
}


def step(model, batch, seq, steps):
    from transformers import GPT2Config, GPT2LMHeadModel
    n_layer, n_head, n_embd = MODELS[model]
    torch.set_float32_matmul_precision("high")
    net = GPT2LMHeadModel(GPT2Config(
        n_layer=n_layer, n_head=n_head, n_embd=n_embd, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0)).cuda()
    net.train()
    run = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, net.config.vocab_size, (batch, seq)).cuda()
    rates = []
    for _ in range(steps + 5):  # the first ones compile
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        rates.append(batch * seq / (time.perf_counter() - start))
    print("%.1f" % statistics.median(rates[5:]))


def copy():
    n = 1 << 30
    host = torch.empty(n, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(n, dtype=torch.uint8, device="cuda")
    best = 0
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, n / (time.perf_counter() - start))
    print("%.2f" % (best / 1e9))


def main():
    what = sys.argv[1]
    if what == "step":
        step(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        copy()


if __name__ == "__main__":
    main()
