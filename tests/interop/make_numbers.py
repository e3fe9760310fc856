#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's numbers for the trainer's unit tests.

usage: make_numbers.py DIR

Writes DIR/network.pt: small GPT-2 models of Hugging Face with odd sizes, for
each a dict of its sizes, its parameters, tokens, the loss and the gradient of
every parameter in float32, and the loss in bfloat16 and float16.

And DIR/ops.pt: single operations of such a model, forwards and backwards, for
each a dict of its sizes, its type, and the tensors that go in and come out.
Made with torch 2.15.0 and transformers 5.
"""
import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.activations import ACT2FN

GELU = ACT2FN["gelu_new"]

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


TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# rows, width
NORMS = [(1, 9), (3, 7), (5, 130)]
# rows, in, out, with residual, with gelu
LINEARS = [
    (1, 1, 1, 0, 0), (3, 5, 7, 1, 0), (17, 33, 20, 0, 1), (2, 3, 300, 0, 0),
]
# batch, seq, heads, width of a head
ATTENTIONS = [(1, 1, 1, 1), (2, 5, 3, 4), (1, 64, 1, 5), (1, 130, 1, 3)]
# rows, width, vocabulary: more rows than a tile has, more columns than a block
CROSS_ENTROPIES = [(1, 1, 2), (700, 3, 5), (9, 3, 1100)]
# batch, seq, width, vocabulary
EMBEDS = [(1, 1, 1, 1), (2, 3, 70, 5), (3, 11, 4, 7)]


def new(dtype, *shape, grad=True):
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def stored(case):
    return {k: v.detach().clone() if torch.is_tensor(v) else v
            for k, v in case.items()}


def norm(dtype, rows, c):
    x, w, b = new(dtype, rows, c), new(dtype, c), new(dtype, c)
    y = torch.nn.functional.layer_norm(x, (c,), w, b, 1e-5)
    dy = new(dtype, rows, c, grad=False)
    y.backward(dy)
    return {"in": x, "weight": w, "bias": b, "out": y, "dout": dy,
            "din": x.grad, "dweight": w.grad, "dbias": b.grad}


def linear(dtype, rows, ic, oc, residual, gelu):
    """Compute gelu both ways: behind the product, and before it."""
    x, w, b = new(dtype, rows, ic), new(dtype, ic, oc), new(dtype, oc)
    y = torch.addmm(b, x, w)
    dy = new(dtype, rows, oc, grad=False)
    out = {"in": x, "weight": w, "bias": b, "dout": dy}
    if residual:
        out["residual"] = new(dtype, rows, oc, grad=False)
        out["out"] = out["residual"] + y
    elif gelu:
        out["pre"], out["out"] = y, GELU(y)
    else:
        out["out"] = y
    if gelu:
        before = new(dtype, rows, ic)
        out["in_pre"] = before
        out["in_gelu"] = GELU(before)
        y = torch.addmm(b, out["in_gelu"], w)
        y.backward(dy)
        out["din"] = before.grad
    else:
        y.backward(dy)
        out["din"] = x.grad
    out["dweight"], out["dbias"] = w.grad, b.grad
    return out


def attention(dtype, batch, seq, heads, width):
    c = heads * width
    qkv = new(dtype, batch * seq, 3 * c)
    q, k, v = (t.view(batch, seq, heads, width).transpose(1, 2)
               for t in qkv.split(c, dim=1))
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True)
    y = y.transpose(1, 2).reshape(batch * seq, c)
    dy = new(dtype, batch * seq, c, grad=False)
    y.backward(dy)
    return {"qkv": qkv, "out": y, "dout": dy, "dqkv": qkv.grad}


def cross_entropy(dtype, rows, c, vocab):
    x, wte = new(dtype, rows, c), new(dtype, vocab, c)
    targets = torch.randint(-1, vocab, (rows,))
    targets[0] = vocab - 1
    scale = 0.125
    logits = (x @ wte.T).float()
    loss = torch.nn.functional.cross_entropy(
        logits, targets, ignore_index=-1, reduction="sum")
    (loss * scale).backward()
    return {"in": x, "wte": wte, "targets": targets.to(torch.int32),
            "loss": loss, "scale": torch.tensor(scale), "din": x.grad,
            "dwte": wte.grad}


def embed(dtype, batch, seq, c, vocab):
    wte, wpe = new(dtype, vocab, c), new(dtype, seq + 2, c)
    tokens = torch.randint(0, vocab, (batch, seq))
    y = wte[tokens] + wpe[torch.arange(seq)]
    dy = new(dtype, batch, seq, c, grad=False)
    y.backward(dy)
    return {"wte": wte, "wpe": wpe, "tokens": tokens.to(torch.int32),
            "out": y, "dout": dy, "dwte": wte.grad, "dwpe": wpe.grad}


def ops():
    torch.manual_seed(0)
    cases = []
    for op, shapes in ((norm, NORMS), (linear, LINEARS),
                       (attention, ATTENTIONS),
                       (cross_entropy, CROSS_ENTROPIES),
                       (embed, EMBEDS)):
        for sizes in shapes:
            for name, dtype in TYPES.items():
                cases.append({"op": op.__name__, "type": name,
                              "sizes": list(sizes),
                              **stored(op(dtype, *sizes))})
    return cases


def main():
    torch.save([one(s, i) for i, s in enumerate(MODELS)],
               os.path.join(sys.argv[1], "network.pt"))
    torch.save(ops(), os.path.join(sys.argv[1], "ops.pt"))


if __name__ == "__main__":
    main()
