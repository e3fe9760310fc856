#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of trainstep.c: the same steps of the same model.

usage: trainstep.py MODEL BATCH SEQ STEPS

Hugging Face's GPT2LMHeadModel in float32, fused AdamW; prints the median of
the steps' tokens/s, and a step's processor milliseconds.
"""
import os
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

MODELS = {  # n_layer, n_head, n_embd
    "gpt2-dsuc": (4, 4, 128),
    "gpt2": (12, 12, 768),
}


def main():
    model, batch, seq, steps = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(1)
    n_layer, n_head, n_embd = MODELS[model]
    net = GPT2LMHeadModel(GPT2Config(
        n_layer=n_layer, n_head=n_head, n_embd=n_embd, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0))
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(0, net.config.vocab_size, (batch, seq))
    rates = []
    for i in range(steps + 1):
        if i == 1:
            spent = time.process_time()
        start = time.perf_counter()
        net(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rates.append(batch * seq / (time.perf_counter() - start))
    spent = time.process_time() - spent
    print("%.1f %.0f" % (statistics.median(rates[1:]), 1e3 * spent / steps))


if __name__ == "__main__":
    main()
