#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loss of a model that transformers loads from a mount.

    hf_loss.py config RUN            write the model's config.json into RUN
    hf_loss.py loss DIR TOKENS WANT  the loss of the model in DIR on the rows of
                                     TOKENS, all as one batch, must be WANT
"""

import sys

import numpy
import torch
from transformers import AutoModelForCausalLM, GPT2Config

WITHIN = 1e-5
SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 256,
         "n_positions": 32}


def write_config(run):
    GPT2Config(**SHAPE, architectures=["GPT2LMHeadModel"], bos_token_id=0,
               eos_token_id=0).save_pretrained(run)


def loss_of(path, tokens):
    model, told = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not told[what], (what, told[what])
    model.eval()
    rows = numpy.fromfile(tokens, dtype="<i4").astype("int64")
    rows = torch.from_numpy(rows.reshape(-1, SHAPE["n_positions"]))
    with torch.no_grad():
        return model(input_ids=rows, labels=rows).loss.item()


def main(what, path, *rest):
    if what == "config":
        write_config(path)
        return 0
    tokens, want = rest
    loss = loss_of(path, tokens)
    good = abs(loss - float(want)) <= WITHIN
    print(f"{'ok' if good else 'FAILED'}: {path}: loss {loss:.7f},"
          f" the trainer's {float(want):.7f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
