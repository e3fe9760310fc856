#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PEFT and transformers load an adapter from a mount.

    lora.py VIEW SAVED

VIEW is <tag>_hf in a mount, SAVED the adapter that PEFT saved beside the tag.  With PEFT and the
model in the directory base here, both must give the same logits, which must differ from the
model's own.  transformers, which finds base by adapter_config.json, must load both equally, too.
"""
import sys

import peft
import torch
import transformers


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(8).unsqueeze(0)).logits


def main(view, saved):
    want = logits(peft.PeftModel.from_pretrained(load("base"), saved))
    assert not torch.equal(want, logits(load("base"))), "the adapter changes nothing"
    model = peft.PeftModel.from_pretrained(load("base"), view)
    assert torch.equal(want, logits(model)), "PEFT: other logits"
    # transformers supports no prompt encoders.
    if not model.active_peft_config.is_prompt_learning:
        assert torch.equal(logits(load(saved)), logits(load(view))), "transformers: other logits"
    print("ok:", saved)


if __name__ == "__main__":
    main(*sys.argv[1:])
