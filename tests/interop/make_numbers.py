#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's numbers for the trainer's unit tests.

usage: make_numbers.py DIR

Writes DIR/network.pt: small GPT-2 models of Hugging Face with odd sizes, for
each a dict of its sizes, its parameters, tokens, the loss and the gradient of
every parameter in float32, and the loss in bfloat16 and float16.
Made with torch 2.15.0 and transformers 5.
"""
import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

# n_layer, n_head, n_embd, vocab, positions, batch, seq
MODELS = [
    (1, 1, 4, 7, 5, 1, 2),
    (2, 3, 12, 37, 11, 3, 7),
    (1, 2, 10, 300, 70, 2, 70),
]


def build(sizes):
    n_layer, n_head, n_embd, vocab, positions, _, _ = sizes
    return GPT2LMHeadModel(GPT2Config(
        n_layer=n_layer, n_head=n_head, n_embd=n_embd, vocab_size=vocab,
        n_positions=positions, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def one(sizes, seed):
    torch.manual_seed(seed)
    model = build(sizes)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    tokens = torch.randint(0, sizes[3], (sizes[5], sizes[6]))
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    out = {
        "sizes": list(sizes),
        "tokens": tokens.to(torch.int32),
        "loss": loss.detach(),
        "params": {n: p.detach().clone() for n, p in model.named_parameters()},
        "grads": {n: p.grad.clone() for n, p in model.named_parameters()},
    }
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        low = build(sizes).to(dtype)
        low.load_state_dict(model.state_dict())
        out["loss_" + name] = low(tokens, labels=tokens).loss.detach().float()
    return out


def main():
    torch.save([one(s, i) for i, s in enumerate(MODELS)],
               os.path.join(sys.argv[1], "network.pt"))


if __name__ == "__main__":
    main()
