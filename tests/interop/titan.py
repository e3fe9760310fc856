# SPDX-License-Identifier: Apache-2.0
"""A small Llama with torchtitan's names.  Tensor-parallel ranks may divide its heads."""

import torch
from torch.nn import functional

WORDS, WIDTH, INNER = 64, 16, 24
HEADS, KV_HEADS = 4, 2
HEAD_WIDTH = WIDTH // HEADS


def linear(rows, columns):
    return torch.nn.Linear(rows, columns, bias=False)


def split_heads(x, copies=1):
    return x.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2).repeat_interleave(copies, 1)


class Block(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        kv_width = KV_HEADS * HEAD_WIDTH
        self.attention = torch.nn.ModuleDict({
            "wq": linear(WIDTH, WIDTH), "wk": linear(WIDTH, kv_width),
            "wv": linear(WIDTH, kv_width), "wo": linear(WIDTH, WIDTH)})
        self.feed_forward = torch.nn.ModuleDict({
            "w1": linear(WIDTH, INNER), "w2": linear(INNER, WIDTH),
            "w3": linear(WIDTH, INNER)})
        self.attention_norm = norm(WIDTH)
        self.ffn_norm = norm(WIDTH)

    def forward(self, x):
        y, attention, mlp = self.attention_norm(x), self.attention, self.feed_forward
        y = functional.scaled_dot_product_attention(
            split_heads(attention["wq"](y)),
            split_heads(attention["wk"](y), HEADS // KV_HEADS),
            split_heads(attention["wv"](y), HEADS // KV_HEADS), is_causal=True)
        x = x + attention["wo"](y.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + mlp["w2"](functional.silu(mlp["w1"](y)) * mlp["w3"](y))


class Titan(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.tok_embeddings = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleDict({"0": Block(norm)})
        self.norm = norm(WIDTH)
        self.output = linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.output(self.norm(self.layers["0"](self.tok_embeddings(tokens))))
