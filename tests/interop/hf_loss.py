#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loss of a model that transformers loads from a mount.

    hf_loss.py DIR TOKENS WANT

The loss of the model in DIR on the rows of TOKENS, as one batch, must be
WANT.
"""

import sys

import numpy
import torch
from transformers import AutoModelForCausalLM

WITHIN = 1e-5


def loss_of(path, tokens):
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[what], (what, info[what])
    model.eval()
    rows = numpy.fromfile(tokens, dtype="<i4").astype("int64")
    rows = torch.from_numpy(rows.reshape(-1, model.config.n_positions))
    with torch.no_grad():
        return model(input_ids=rows, labels=rows).loss.item()


def main(path, tokens, want):
    loss = loss_of(path, tokens)
    good = abs(loss - float(want)) <= WITHIN
    print(f"{'ok' if good else 'FAILED'}: {path}: loss {loss:.7f},"
          f" the trainer's {float(want):.7f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
