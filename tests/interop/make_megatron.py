#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make cases of tests/good that Megatron-Core's DistributedOptimizer saves (torch_dist).

    make_megatron.py MEGATRON OUTPUT CASE

MEGATRON is a directory with the package `megatron` of megatron-core (--no-deps), of which
a copy is patched to run on CPUs; CASE is one of CASES below.  The model has weights of
bfloat16 and masters of float32; gradients are random, two steps are made.  Needs torch 2.15.
"""

import argparse
import hashlib
import os
import re
import shutil
import sys
import zlib

import numpy
import torch
import torch.distributed as dist

import forked

# Version of megatron-core, ranks, sizes of parallel groups, the form of the optimizer's states.
CASES = {
    "mcore_experts": ("0.19.2", 2, {"expert_model_parallel_size": 2}, "fully_reshardable"),
    "mcore_flattened": ("0.13.1", 4, {"tensor_model_parallel_size": 2},
                        "fully_sharded_model_space"),
}
EXPERTS = 2


def patched(source, output):
    """Make a copy of the package that uses CPUs in place of GPUs."""
    copy = os.path.join(output, "patched")
    if not os.path.isdir(copy):
        shutil.copytree(source, copy)
        for folder, _, files in os.walk(copy):
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    with open(path) as f:
                        text = f.read()
                    text = re.sub(r"(['\"])cuda\1", r"\1cpu\1", text)
                    text = re.sub(r"torch\.cuda\.(\w+Tensor)", r"torch.\1", text)
                    with open(path, "w") as f:
                        f.write(text)
    sys.path.insert(0, copy)
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *a, **k: None)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *a, **k: self
    numpy.product = numpy.prod  # 0.13 uses it


def build(sizes):
    from megatron.core import parallel_state
    from megatron.core.distributed import (DistributedDataParallel,
                                           DistributedDataParallelConfig)
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(**sizes)
    experts = EXPERTS if "expert_model_parallel_size" in sizes else None
    config = TransformerConfig(
        num_layers=2, hidden_size=8, num_attention_heads=2, num_query_groups=2,
        ffn_hidden_size=12, use_cpu_initialization=True, params_dtype=torch.bfloat16, bf16=True,
        hidden_dropout=0., attention_dropout=0., gradient_accumulation_fusion=False,
        bias_dropout_fusion=False, add_bias_linear=False, gated_linear_unit=True,
        num_moe_experts=experts, moe_router_topk=1, moe_router_pre_softmax=True,
        moe_ffn_hidden_size=6 if experts else None, **sizes)
    torch.manual_seed(1)
    spec = get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=False)
    model = GPTModel(config, spec, vocab_size=16, max_sequence_length=8,
                     position_embedding_type="rope",
                     share_embeddings_and_output_weights=True).bfloat16()
    ddp = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), model,
        disable_bucketing=True)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=.01, bf16=True,
                        params_dtype=torch.bfloat16, use_distributed_optimizer=True,
                        clip_grad=0.), [ddp])
    return model, ddp, getattr(optimizer, "chained_optimizers", [optimizer]), optimizer


def step(model, ddp, optimizers, number, rank):
    for name, p in model.named_parameters():
        seed = zlib.crc32(name.encode()) % 10000 + number + 1000 * rank
        g = torch.Generator().manual_seed(seed)
        p.main_grad.copy_(torch.randn(p.shape, generator=g) * .02)
    for o in optimizers:
        o._copy_model_grads_to_main_grads()
        for group in o.optimizer.param_groups:
            group["step"] = number
            # Matches Megatron-LM's scheduler.
            group["weight_decay"] = .01 * group["wd_mult"]
        o.optimizer.step()
        o._copy_main_params_to_model_params()
    ddp.start_param_sync(force_sync=True)


def key_of(name, first_expert):
    """Return the name of a parameter in a checkpoint, and the number of its expert, or None."""
    name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
    found = re.search(r"local_experts\.(\d+)", name)
    if not found:
        return name, None
    return name.replace(found[0], "experts"), first_expert + int(found[1])


def ranges(model, optimizers, tp, first_expert):
    """Return this rank's part of each parameter: a range of its slice's elements."""
    names = {p: n for n, p in model.named_parameters()}
    for o in optimizers:
        for buffers in o.gbuf_ranges:
            for buckets in buffers.values():
                for bucket in buckets:
                    for p, r in bucket["param_map"].items():
                        states = o._get_main_param_and_optimizer_states(p)
                        dim = p.partition_dim if getattr(p, "tensor_model_parallel",
                                                         False) else None
                        yield (key_of(names[p], first_expert), dim, tp, tuple(p.shape),
                               slice(r["param"].start, r["param"].end),
                               {k: states[k].clone() for k in ("param", "exp_avg",
                                                               "exp_avg_sq")})


def whole(all_ranges):
    """Return {(name, state): tensor}."""
    slices, dims = {}, {}
    for (name, expert), dim, tp, shape, part, states in all_ranges:
        dims[name] = dim
        for kind, t in states.items():
            at = slices.setdefault((name, kind), {}).setdefault((expert or 0, tp),
                                                                torch.full(shape, numpy.nan))
            at.view(-1)[part] = t.float().view(-1)
    for (name, kind), parts in slices.items():
        experts = []
        for e in sorted({e for e, _ in parts}):
            v = [parts[k] for k in sorted(parts) if k[0] == e]
            if dims[name] is None:
                v = v[:1]
            elif "linear_fc1.weight" in name and len(v) > 1:  # gates first, then values
                v = [h for i in (0, 1) for h in [x.chunk(2)[i] for x in v]]
            experts.append(torch.cat(v, dims[name] or 0) if len(v) > 1 else v[0])
        t = torch.stack(experts) if ".experts." in name else experts[0]
        assert not t.isnan().any(), name
        yield name, kind, t


def digests(all_ranges):
    yield "tag iter_0000002"
    for name, kind, t in whole(all_ranges):
        if kind == "param":
            yield "shape %s %s" % (name, "x".join(map(str, t.shape)))
            yield "number %s step int 2" % name
        sha = hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest()
        yield "truth %s %s %s" % (name, kind.replace("param", "fp32"), sha)


def save(rank, case, output):
    _, ranks, sizes, form = CASES[case]
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model, ddp, optimizers, optimizer = build(sizes)
    from megatron.core import dist_checkpointing, parallel_state

    tp = parallel_state.get_tensor_model_parallel_rank()
    ep = parallel_state.get_expert_model_parallel_rank()
    for number in (1, 2):
        step(model, ddp, optimizers, number, 2 * tp + ep)
    first = ep * EXPERTS // sizes.get("expert_model_parallel_size", 1)
    mine, both = list(ranges(model, optimizers, tp, first)), [None] * ranks
    dist.all_gather_object(both, mine)
    metadata = {"distrib_optim_sharding_type": form, "chained_optim_avoid_prefix": True}
    state = {"model": model.sharded_state_dict(metadata=metadata), "iteration": 2,
             "checkpoint_version": 3.0, "args": argparse.Namespace(num_layers=2)}
    try:
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=metadata)
    except TypeError: # 0.13
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], sharding_type=form)
    out = os.path.join(output, "dcp_" + case)
    if not rank:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out + "/iter_0000002")
        with open(out + ".digests", "w") as f:
            f.write("\n".join(digests([x for v in both for x in v])) + "\n")
    dist.barrier()
    dist_checkpointing.save(state, out + "/iter_0000002")
    dist.barrier()


def main(source, output, case):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + os.getpid() % 500), OMP_NUM_THREADS="1",
                      GLOO_SOCKET_IFNAME="lo")
    patched(source, output)
    children = []
    for rank in range(CASES[case][1]):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(CASES[case][1]))
        pid = os.fork()
        if not pid:
            forked.work_and_exit(save, rank, case, output)
        children.append(pid)
    return max(os.waitpid(pid, 0)[1] for pid in children) != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
