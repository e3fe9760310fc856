#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make small checkpoints with DeepSpeed, and record the truth about them.

    make_cases.py COLLECTION [CASE...]

COLLECTION is written in the form that make_digests.py reads: for each case the
checkpoint, as much of the tree as ds_to_universal makes of it, and in
manifest.json the digests of all tensors as the training processes had them
right before they saved.  The digests are made from the optimizer's flat
buffers, divided by the rules of resume.py and parallel.py, and checked: a
master weight must round to the model's parameter.

The cases are those whose rules no other case in tests/good shows: other
optimizers, odd sizes, options.  DeepSpeed's own optimizers are compiled when
first used.  What DeepSpeed cannot do on CPUs is reported with its error;
comments at CASES say what was found with 0.19.8.
"""

import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile

import torch
import deepspeed
from deepspeed.runtime.swap_tensor import optimizer_utils

import parallel
import resume

STEPS = 4
TAG = f"global_step{STEPS}"
VOCAB = 7
WIDTH = 5
ROWS = 2  # rows of a rank's batch
TOKENS = 3


class Small(torch.nn.Module):
    """A model with parameters of odd sizes.  `more`: shapes of further parameters, whose squares
    are added to the loss."""

    def __init__(self, more=(), bare=False, tied=False):
        super().__init__()
        self.embed = None if bare else torch.nn.Embedding(VOCAB, WIDTH)
        if tied:  # a second name, a buffer, a frozen parameter
            self.head = torch.nn.Linear(WIDTH, VOCAB, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("means", torch.randn(WIDTH))
            self.fixed = torch.nn.Parameter(torch.randn(2, 3),
                                            requires_grad=False)
        self.inner = None if bare else torch.nn.Linear(WIDTH, WIDTH)
        self.more = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.randn(shape))
             for name, shape in more})

    def forward(self, tokens, targets):
        loss = sum(p.float().square().sum() for p in self.more.values())
        if self.embed is None:
            return loss + 0.01 * tokens.float().mean()
        x = torch.tanh(self.inner(self.embed(tokens)))
        logits = (x @ self.embed.weight.t()).float()
        return loss + torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten())


# GPT-2 whose checkpoint records padding rows of its vocabulary.
PADDED_VOCAB = 16
PADDED = {"universal_checkpoint_version": 0.4,
          "original_vocab_size": 11,
          "padded_vocab_size": PADDED_VOCAB,
          "vocabulary_parameter_patterns": [r"transformer\.wte\.weight"]}


def gpt2():
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=PADDED_VOCAB, n_positions=5, n_embd=6, n_layer=2, n_head=2,
        embd_pdrop=0, attn_pdrop=0, resid_pdrop=0))


def by_dimension(model, decay):
    """Group parameters: matrices decay, the rest does not."""
    split = [[p for p in model.parameters() if (p.dim() > 1) == matrices]
             for matrices in (True, False)]
    return [{"params": ps, "weight_decay": d}
            for ps, d in zip(split, (decay, 0.0))]


class Case:
    def __init__(self, name, world, stage, dtype="fp32", *, zero=None,
                 config=None, optimizer=None, groups=1, more=(), bare=False,
                 tp=1, sp=1, pp=1, odd=False, autotp=False, padded=False,
                 tied=False, fused=False):
        self.name, self.world, self.stage, self.dtype = \
            name, world, stage, dtype
        self.zero, self.config = zero or {}, config or {}
        self.optimizer, self.groups = optimizer, groups
        self.more, self.bare = more, bare
        self.tp, self.sp, self.odd, self.autotp = tp, sp, odd, autotp
        self.pp, self.padded = pp, padded
        self.tied, self.fused = tied, fused

    def recipe(self):
        return {k: repr(v) if callable(v) else v
                for k, v in vars(self).items() if k != "name" and v}


def torch_optimizer(name, **options):
    """A torch optimizer that DeepSpeed accepts only with an extra option."""
    options.setdefault("lr", 1e-2)
    return lambda params: getattr(torch.optim, name)(params, **options)


def cpu_adam(params):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(params, lr=1e-2)


def adafactor(params):
    from transformers import Adafactor
    return Adafactor(params, lr=1e-2, beta1=0.9, scale_parameter=False,
                     relative_step=False)


def by_config(name, **params):
    return {"optimizer": {"type": name, "params": {"lr": 1e-2, **params}}}


# 0.19.8 fails for parameters without dimensions when it broadcasts them at the creation of an
# engine; earlier releases did not.  Here all ranks have the same seed, so nothing needs to be
# sent.
SCALARS = [("scalar", ()), ("one", (1,)), ("two", (2,))]
CPU = {"device": "cpu"}
OFFLOAD = {"offload_optimizer": CPU}

# DeepSpeed keeps sub-groups of less than 1 MiB in memory.  `train` lowers this
# limit to SWAPPED_BYTES, so that only some are on NVMe.  Needs libaio's headers,
# to compile.
SWAP = {"device": "nvme", "nvme_path": tempfile.gettempdir()}
NVME = {"offload_optimizer": SWAP}
SWAPPED_BYTES = 1024
NVME_IO = {**by_config("Adam"), "aio": {"block_size": SWAPPED_BYTES}}
LARGE = [("large", (32, 19)), ("last", (3,))]

CASES = [
    # Optimizers with other states, for which the converter fails.
    Case("z1_sgd_dp2", 2, 1, optimizer=torch_optimizer("SGD")),
    Case("z3_sgd_dp2", 2, 3, optimizer=torch_optimizer("SGD")),
    Case("z1_adagrad_dp2", 2, 1, optimizer=torch_optimizer("Adagrad")),
    Case("z2_rmsprop_dp2", 2, 2, "bf16", optimizer=torch_optimizer(
        "RMSprop", momentum=0.9, centered=True)),
    Case("z2_amsgrad_dp2", 2, 2, optimizer=torch_optimizer(
        "Adam", amsgrad=True)),
    Case("z1_nadam_dp2", 2, 1, optimizer=torch_optimizer("NAdam")),
    Case("z1_lion_dp2", 2, 1, zero=OFFLOAD, config=by_config("Lion")),
    Case("z1_cpuadagrad_dp2", 2, 1, zero=OFFLOAD,
         config=by_config("Adagrad")),
    Case("z1_lamb_dp2", 2, 1, config=by_config("Lamb")),
    Case("z1_muon_dp2", 2, 1, config=by_config("Muon")),
    Case("z2_muon_bf16_dp3", 3, 2, "bf16", config=by_config("Muon"),
         more=[("a", (3, 4)), ("b", (2, 3))]),
    Case("z1_muon_few_dp4", 4, 1, bare=True, config=by_config("Muon"),
         more=[("a", (3, 1))]),
    Case("z2_muon_offload_dp2", 2, 2, zero=OFFLOAD,
         config=by_config("Muon")),
    Case("z3_muon_bf16_dp2", 2, 3, "bf16", config=by_config("Muon"),
         zero={"reduce_scatter": False}),
    # Steps are Python numbers; Adafactor has one for each partition.
    Case("z1_adafactor_dp2", 2, 1, optimizer=adafactor),
    Case("z3_adafactor_subgroups_dp2", 2, 3, optimizer=adafactor,
         zero={"sub_group_size": 16}),
    Case("z1_cpuadam_dp2", 2, 1, optimizer=cpu_adam),
    Case("z2_offload_bf16_dp3", 3, 2, "bf16", zero=OFFLOAD, groups=2,
         config=by_config("Adam")),
    Case("z3_offload_param_dp3", 3, 3, groups=2, config=by_config("Adam"),
         zero={**OFFLOAD, "offload_param": CPU, "sub_group_size": 16}),
    # The optimizer counts micro-batches, but DeepSpeed's global steps count updates.
    Case("z2_zenflow_dp2", 2, 2, config=by_config("AdamW"),
         zero={**OFFLOAD, "zenflow": {
             "topk_ratio": 0.5, "select_strategy": "step",
             "select_interval": 2, "update_interval": 2}}),
    # Models with odd sizes.
    Case("z2_few_dp8", 8, 2, bare=True, more=[("a", (3,)), ("b", (1,))]),
    Case("z3_few_dp4", 4, 3, bare=True, more=[("a", (3,)), ("b", (1,))]),
    Case("z1_empty_dp2", 2, 1, more=[("none", (0, 4)), ("one", (1,))]),
    Case("z2_empty_bf16_dp2", 2, 2, "bf16", groups=2,
         more=[("none", (0,)), ("rows", (3, 0)), ("one", (1,))]),
    Case("z3_empty_dp2", 2, 3, more=[("none", (0, 4)), ("one", (1,))]),
    Case("z1_scalar_dp2", 2, 1, more=SCALARS),
    Case("z2_scalar_bf16_dp1", 1, 2, "bf16", more=SCALARS),
    Case("z3_scalar_dp2", 2, 3, more=SCALARS),
    # Options of DeepSpeed.
    Case("z3_fp16_groups_dp2", 2, 3, "fp16", groups=2),
    Case("z3_bf16_subgroups_dp2", 2, 3, "bf16", groups=2,
         zero={"sub_group_size": 16}),
    Case("z2_round_robin_bf16_dp2", 2, 2, "bf16", groups=2,
         zero={"round_robin_gradients": True},
         more=[("a", (3,)), ("b", (2, 3)), ("c", (4,))]),
    Case("z2_elastic_groups_dp3", 3, 2, groups=2,
         zero={"elastic_checkpoint": True}),
    Case("z3_quantized_weights_dp2", 2, 3, "bf16",
         zero={"zero_quantized_weights": True}),
    Case("z3_quantized_gradients_dp2", 2, 3, "bf16",
         zero={"zero_quantized_gradients": True}),
    Case("z3_mics_dp2", 2, 3, zero={"mics_shard_size": 1}),
    Case("z3_nvme_dp2", 2, 3, config=NVME_IO, groups=2, more=LARGE,
         zero={**NVME, "sub_group_size": 16}),
    Case("z3_nvme_bf16_dp2", 2, 3, "bf16", config=NVME_IO, more=LARGE,
         zero={**NVME, "offload_param": SWAP}),
    Case("z1_not_zip_dp2", 2, 1,
         config={"checkpoint": {"checkpoint_serialization": False}}),
    # A vocabulary with padding; ZeRO-3's tree keeps it.
    Case("z2_padded_vocab_dp2", 2, 2, padded=True),
    Case("z3_padded_vocab_dp2", 2, 3, padded=True),
    # Sequence and tensor parallelism.
    Case("sp2_dp1_z2_bf16", 2, 2, "bf16", sp=2),
    Case("tp2_dp1_z2_bf16", 2, 2, "bf16", tp=2, odd=True),
    Case("tp2_dp2_z1_bf16", 4, 1, "bf16", tp=2, odd=True),
    Case("tp3_dp1_z1", 3, 1, tp=3, odd=True),
    Case("tp2_dp2_z3", 4, 3, tp=2),
    # A tied module with a weight that its stages do not share, and that the
    # weight decay of Adam moves where nothing uses it.
    Case("pp2_dp1_z1_tied_positions", 2, 1, pp=2,
         optimizer=torch_optimizer("Adam", weight_decay=0.1)),
    # Cases without ZeRO.
    Case("z0_tied_frozen_buffers_dp2", 2, 0, tied=True),
    Case("z0_groups2_dp2", 2, 0, groups=2),
    Case("z0_fp16_groups2_dp2", 2, 0, "fp16", groups=2),
    Case("z0_bf16_fused_groups2_dp2", 2, 0, "bf16", groups=2, fused=True),
    Case("pp2_dp1_z0_tied_positions", 2, 0, pp=2),
    Case("autotp2_z1_bf16_dp2", 4, 1, "bf16", tp=2, autotp=True),
    Case("autotp2_z3_bf16_dp2", 4, 3, "bf16", tp=2, autotp=True),
]


def config_of(case):
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 10 ** 6,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": case.stage, **case.zero},
        **case.config,
    }
    if case.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if case.dtype == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    if case.sp > 1:
        config["sequence_parallel_size"] = case.sp
        config["data_parallel_size"] = case.world // case.sp
    if case.autotp:
        config["tensor_parallel"] = {"autotp_size": case.tp}
    if not case.optimizer and "optimizer" not in config:
        config.update(by_config("AdamW", torch_adam=True))
    return config


def new_engine(case):
    torch.manual_seed(7)
    more = {}
    # Sequence-parallel ranks are like tensor-parallel ones: they see the same
    # data, and their states are replicas.
    beside = case.tp * case.sp
    grid = parallel.Grid(beside, case.pp, case.world // beside // case.pp)
    if case.autotp:
        model = parallel.llama()
        positions = parallel.autotp_positions(case.tp)
    elif case.padded:
        model = gpt2()
    elif case.pp > 1:
        model = parallel.pipeline(grid, TOKENS)
    elif case.tp > 1:
        model, more["mpu"] = parallel.TensorModel(grid, case.odd), grid
    else:
        model = Small(case.more, case.bare, case.tied)
    if case.more is SCALARS:
        send_nothing()
    if case.dtype == "fp16":  # independent of the processor
        deepspeed.get_accelerator().is_fp16_supported = lambda: True
    if case.fused:  # like on GPUs: one flat buffer for each group
        deepspeed.runtime.engine.FusedAdam = torch.optim.AdamW
    params = (list(model.parameters()) if case.groups == 1
              else by_dimension(model, 0.1))
    if case.optimizer:
        more["optimizer"] = case.optimizer(params)
    else:
        more["model_parameters"] = params
    engine, *_ = deepspeed.initialize(model=model, config=config_of(case),
                                      **more)
    if case.autotp:
        parallel.set_positions(engine, positions)
    return engine, grid


def send_nothing():
    deepspeed.DeepSpeedEngine._broadcast_model = lambda engine: None

    def make_partitioned(init, param):
        init._convert_to_deepspeed_param(param)
        param.partition()

    deepspeed.zero.Init._zero_init_param = make_partitioned


def batches(rank, vocab):
    chance = torch.Generator().manual_seed(100 + rank)
    while True:
        yield tuple(torch.randint(0, vocab, (2, ROWS, TOKENS),
                                  generator=chance))


def check_master(engine, states):
    """Check that the master weights round to the model's parameters."""
    for name, p in engine.module.named_parameters():
        if (name, "fp32") not in states or hasattr(p, "positions"):
            continue  # only a piece; the rules apply to whole parameters
        if name == "tied_modules.ends.positions":
            continue  # each stage has its own copy
        with deepspeed.zero.GatheredParameters(
                [p], enabled=hasattr(p, "ds_id")):
            if not torch.equal(states[name, "fp32"].to(p.dtype), p.data):
                raise RuntimeError(f"{name} is not its master weight rounded")


def unsplit_states(engine):
    """Like parallel.whole_states, for all stages of a pipeline."""
    names = {p: n for n, p in engine.module.named_parameters()}
    states, numbers = {}, {}
    for p, master, own in resume.unsplit_parts(engine):
        for key, v in {"fp32": master.detach(), **own}.items():
            if key == "step":
                numbers[names[p]] = {key: v}
            else:
                states[names[p], key] = v.view(p.shape).clone()
    ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, (states, numbers))
    for other, kept in reversed(ranks):
        states.update(other)
        numbers.update(kept)
    return states, numbers


def truth(case, engine, grid):
    """Return the entry of manifest.json for each parameter."""
    states, numbers = (parallel.whole_states(engine, grid, case.stage)
                       if case.stage else unsplit_states(engine))
    if "zenflow" not in case.zero:  # ZenFlow updates only some columns of the model's weights
        check_master(engine, states)
    out = {}
    for (name, state), tensor in states.items():
        if name.split(".")[-1] == "words":
            tensor = tensor[:parallel.VOCAB]
        if name.endswith("wte.weight") and case.stage < 3:
            tensor = tensor[:PADDED["original_vocab_size"]]
        about = out.setdefault(name, {"frozen": False})
        if state == "fp32":
            about["shape"] = list(tensor.shape)
        about[state] = digest(tensor)
    for name, kept in numbers.items():
        out[name]["numbers"] = {key: number(v) for key, v in kept.items()
                                if v is not None}
    return out


def digest(tensor):
    data = tensor.float().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def number(value):
    if torch.is_tensor(value):
        return str(value.dtype).replace("torch.", ""), value.item()
    return type(value).__name__, value


def train(rank, case, run_dir, out):
    optimizer_utils.MIN_AIO_BYTES = SWAPPED_BYTES
    engine, grid = new_engine(case)
    divided = (case.tp > 1 or case.pp > 1) and not case.autotp
    named = case.autotp or case.padded  # transformers passes tensors as named arguments
    feed = batches(grid.data, parallel.VOCAB if divided else VOCAB)
    for _ in range(STEPS):
        if case.pp > 1:
            engine.train_batch(feed)
            continue
        tokens, targets = next(feed)
        loss = (engine(input_ids=tokens, labels=targets).loss if named
                else engine(tokens, targets))
        engine.backward(loss)
        engine.step()
    about = truth(case, engine, grid)
    info = (parallel.uc_info(grid, case.odd, case.pp > 1, case.pp > 1)
            if divided
            else PADDED if case.padded else {})
    engine.save_checkpoint(run_dir, tag=TAG, client_state={} if case.autotp
                           else {"universal_checkpoint_info": info})
    if rank == 0:
        with open(out, "w", encoding="utf-8") as f:
            json.dump({"deepspeed": deepspeed.__version__,
                       "torch": torch.__version__, "world": case.world,
                       "recipe": case.recipe(), "params": about}, f)


def convert(case, case_dir):
    """Return the converter's tree, possibly incomplete, and its error."""
    tree = os.path.join(case_dir, TAG + "_universal")
    try:
        resume.convert(os.path.join(case_dir, TAG), tree, False,
                       case_dir + ".convert.log")
    except RuntimeError as e:
        return last_line(e)
    finally:
        shutil.rmtree(os.path.join(tree, "tmp"), ignore_errors=True)
    return None


def last_line(error):
    """Return the error at the end of a log; killed ranks report none."""
    lines = [s for s in str(error).splitlines() if "Error" in s[:60]]
    return (lines or str(error).splitlines())[-1]


def make_case(case, collection):
    case_dir = os.path.join(collection, case.name)
    for left in glob.glob(case_dir + "[.]*") + [case_dir]:
        if os.path.isdir(left):
            shutil.rmtree(left)
        elif os.path.exists(left):
            os.remove(left)
    os.makedirs(case_dir)
    about = case_dir + ".json"
    resume.on_ranks(case.world, train, case_dir + ".log", case, case_dir,
                    about)
    for script in "zero_to_fp32.py", "zero_to_torch.py":
        if os.path.exists(os.path.join(case_dir, script)):
            os.remove(os.path.join(case_dir, script))
    failure = convert(case, case_dir) if case.stage else "no ZeRO"
    with open(about, encoding="utf-8") as f:
        made = json.load(f)
    made["converter"] = failure or "ok"
    return made


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    collection, wanted = sys.argv[1], sys.argv[2:]
    os.makedirs(collection, exist_ok=True)
    path = os.path.join(collection, "manifest.json")
    manifest = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            manifest = json.load(f)
    for case in CASES:
        if wanted and case.name not in wanted:
            continue
        manifest.pop(case.name, None)
        try:
            manifest[case.name] = make_case(case, collection)
            said = "converter: " + manifest[case.name]["converter"]
        except RuntimeError as e:
            said = "not made: " + last_line(e)
        print(f"{case.name:26} {said}", flush=True)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(manifest, f, indent=1)


if __name__ == "__main__":
    main()
