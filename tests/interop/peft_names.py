#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The names that PEFT gives to weights of its methods, in a model and in the file of an adapter.

    peft_names.py >../good/peft_names.txt

A line "method NAME" begins a method, whose adapter is called mine.  A line follows for each tensor
of the model's state dict, except most of the base model's: "t" (trained), "f" (frozen) or "b" (a
buffer, or a second name), its name, and its name in adapter_model.safetensors or "-".  A line
"computed KEY" is for a tensor of the file that the model does not have."""
import sys
import warnings

import peft
import torch
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from transformers import LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore")
Q = {"target_modules": ["q_proj"]}
PROMPT = {"num_virtual_tokens": 3}
METHODS = [
    ("AdaLora", dict(Q, init_r=2, target_r=1, total_step=10)),
    ("AdaptionPrompt", {"adapter_len": 3, "adapter_layers": 1}),
    ("Beft", Q), ("BOFT", dict(Q, boft_block_size=4)), ("C3A", dict(Q, block_size=4)),
    ("Cartridge", PROMPT),
    ("CPT", {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1]}),
    ("Deft", dict(Q, r=2)), ("Delora", dict(Q, r=2)), ("FourierFT", dict(Q, n_frequency=4)),
    ("Frod", Q), ("Glora", dict(Q, r=2)), ("Gralora", dict(Q, r=4, gralora_k=2)),
    ("Hira", dict(Q, r=2)), ("HRA", dict(Q, r=2)),
    ("IA3", {"target_modules": ["down_proj"], "feedforward_modules": ["down_proj"],
             "modules_to_save": ["lm_head"]}),
    ("Lily", dict(Q, r=2)), ("LNTuning", {"target_modules": ["input_layernorm"]}),
    ("LoHa", dict(Q, r=2)), ("LoKr", dict(Q, r=2)),
    ("Lora", dict(Q, r=2, lora_bias=True, modules_to_save=["lm_head"], bias="all")),
    ("Lora", {"target_modules": ["q_proj", "embed_tokens"], "r": 2, "use_dora": True}),
    ("Lora", dict(Q, r=2, trainable_token_indices=[1, 2])),
    ("Miss", dict(Q, r=2)),
    ("MultitaskPromptTuning", dict(PROMPT, num_tasks=2)),
    ("OFT", dict(Q, oft_block_size=4, r=0)), ("OSF", Q), ("Peanut", dict(Q, r=2)),
    ("Poly", dict(Q, r=2)), ("PrefixTuning", PROMPT),
    ("PrefixTuning", dict(PROMPT, prefix_projection=True, encoder_hidden_size=4)),
    ("PromptEncoder", dict(PROMPT, encoder_hidden_size=4)),
    ("PromptTuning", PROMPT), ("Psoft", dict(Q, r=2)), ("Pvera", dict(Q, r=2)),
    ("RandLora", dict(Q, r=2)), ("Road", dict(Q, group_size=8)), ("Shadow", {}),
    ("Shira", dict(Q, r=1)), ("TinyLora", Q),
    ("TrainableTokens", {"target_modules": ["embed_tokens"], "token_indices": [1, 2]}),
    ("UniLora", dict(Q, r=2)),
    ("VBLoRA", dict(Q, r=2, num_vectors=4, vector_length=2, topk=2)),
    ("Vera", dict(Q, r=2)), ("WaveFT", dict(Q, n_frequency=4)),
]


def model():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16,
        attention_bias=True, tie_word_embeddings=False))


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and (a.data_ptr() == b.data_ptr() or
                                                          torch.equal(a, b))


def source(key, tensor, state, tuner):
    """Return the model's name that a name in the file derives from, or None."""
    found = [n for n in state if same(state[n], tensor)]
    for short in (lambda n: tuner._remove_adapter_name_from_key(n, "mine"),
                  lambda n: n.replace(".modules_to_save.mine", "")):
        for n in found:
            if short(n) == key:
                return n
    return found[0] if found else None


def main():
    for method, options in METHODS:
        torch.manual_seed(1)
        config = getattr(peft, method + "Config")(task_type="CAUSAL_LM", **options)
        m = peft.get_peft_model(model(), config, adapter_name="mine")
        for p in m.parameters():
            torch.nn.init.normal_(p)
        kinds = {n: "t" if p.requires_grad else "f" for n, p in m.named_parameters()}
        state = m.state_dict()
        saved = peft.get_peft_model_state_dict(m, adapter_name="mine")
        keys = {source(k, v, state, PEFT_TYPE_TO_TUNER_MAPPING[config.peft_type]): k
                for k, v in saved.items()}
        print("method", method)
        for n in state:
            if n in keys or ".mine" in n or "base_layer" in n or n.endswith("k_proj.weight"):
                print(kinds.get(n, "b"), n, keys.get(n, "-"))
        if None in keys:
            print("computed", keys[None])


if __name__ == "__main__":
    sys.exit(main())
