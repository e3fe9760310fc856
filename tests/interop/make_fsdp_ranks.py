#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make cases of tests/good: FSDP checkpoints by torch.save, of each rank or of rank 0 for all.

    make_fsdp_ranks.py OUTPUT [CASE]...

fsdp_verl_* are as verl's checkpoint manager leaves them: on three ranks, whose chunks are
uneven or empty, with tied weights and two groups; on a mesh of replicas; with tensor
parallelism; of FSDP1.  fsdp_full_* are Accelerate's FULL_STATE_DICT, of two models;
fsdp_local its LOCAL_STATE_DICT, fsdp_sharded its SHARDED_STATE_DICT without DCP; fsdp_hf_* are
torch's HuggingFaceStorageWriter's; fsdp_kinds is a DCP with buffers and frozen parameters.
Needs torch 2.15, which has gloo.
"""

import hashlib
import json
import os
import sys

import torch
import torch.multiprocessing as mp
import torch.nn as nn

H, V = 10, 18


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(H)
        self.up = nn.Linear(H, width)
        self.down = nn.Linear(width, H)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, tied=False, width=14):
        super().__init__()
        self.embed = nn.Embedding(V, H)
        self.layers = nn.ModuleList([Layer(width)])
        self.lm_head = nn.Linear(H, V, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight
        self.register_buffer("scale", torch.arange(1.0, H + 1))  # its shape is a parameter's

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.lm_head(x).float().flatten(0, 1), ids.flatten())


def full(t):
    return (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone()


def sha256(t):
    return hashlib.sha256(t.float().contiguous().numpy().tobytes()).hexdigest()


def write_digests(path, tag, weights, states, step):
    with open(path, "w") as f:
        print("# gathered by the ranks\ntag %s" % tag if tag else
              "# gathered by the ranks\nhugging-face", file=f)
        for name, w in sorted(weights.items()):
            s = states.get(name)
            if s is None:
                print("weight %s fp32 %s" % (name, sha256(w)), file=f)
                continue
            print("shape %s %s" % (name, "x".join(map(str, w.shape)) or "-"), file=f)
            print("truth %s fp32 %s" % (name, sha256(w)), file=f)
            for k in ("exp_avg", "exp_avg_sq"):
                print("truth %s %s %s" % (name, k, sha256(s.get(k, torch.zeros(w.shape)))), file=f)
            if step:
                print("number %s step %s" % (name, step), file=f)


def groups(model):
    """Make the usual groups of trainers: parameters with one dimension do not decay."""
    params = [p for p in model.parameters()]
    return [{"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]


def steps(model, optimizer, rank, vocabulary=V, length=6):
    for step in range(3):
        g = torch.Generator().manual_seed(step * 10 + rank)
        model(torch.randint(0, vocabulary, (2, length), generator=g)).backward()
        optimizer.step()
        optimizer.zero_grad()


def truth(model, optimizer):
    names = {p: n for n, p in model.named_parameters()}
    weights = {n: full(v) for n, v in model.state_dict().items()}
    states = {names[p]: {k: full(v) for k, v in s.items()} for p, s in optimizer.state.items()}
    return weights, states


def wrap(case, model, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if case == "verl_tp":
        from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                       parallelize_module)

        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"],
                               {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = mesh["dp"]
    elif case == "verl_hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("ddp", "fsdp"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def save_verl(out, world, rank, model, optimizer):
    os.makedirs(out + "/huggingface", exist_ok=True)
    end = "world_size_%d_rank_%d.pt" % (world, rank)
    torch.save(model, out + "/model_" + end)
    torch.save(optimizer, out + "/optim_" + end)
    if rank == 0:
        torch.save({"lr_scheduler": {"last_epoch": 3}}, out + "/extra_state_" + end)
        with open(out + "/huggingface/config.json", "w") as f:
            json.dump({"model_type": "tiny", "hidden_size": H}, f)


def fsdp2(case, output, world, rank):
    bf16 = case == "verl_hsdp"
    # With four rows, the last of three ranks has none.
    model = Net(tied=True, width=4) if case == "verl_dp3" else Net()
    model = model.to(torch.bfloat16 if bf16 else torch.float32)
    model = wrap(case, model, world)
    params = groups(model) if case in ("verl_dp3", "verl_tp") else model.parameters()
    optimizer = torch.optim.AdamW(params, lr=1e-2)
    steps(model, optimizer, rank if case != "verl_tp" else rank // 2)
    weights, states = truth(model, optimizer)
    tag = "global_step_3/actor" if case.startswith("verl") else "checkpoint_3"
    out = "%s/fsdp_%s/%s" % (output, case, tag)
    if case.startswith("verl"):
        save_verl(out, world, rank, model.state_dict(), optimizer.state_dict())
        if rank == 0 and case == "verl_dp3":
            with open(out + "/../../latest_checkpointed_iteration.txt", "w") as f:
                f.write("3")
    elif case == "sharded":
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), out + "/pytorch_model_fsdp_0_rank%d.bin" % rank)
        torch.save(get_optimizer_state_dict(model, optimizer), out + "/optimizer_0_rank%d.bin" % rank)
    elif case == "full":
        from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                             get_optimizer_state_dict)

        o = StateDictOptions(full_state_dict=True, cpu_offload=True)
        m, s = get_model_state_dict(model, options=o), get_optimizer_state_dict(model, optimizer, options=o)
        if rank == 0:
            os.makedirs(out, exist_ok=True)
            torch.save(m, out + "/pytorch_model_fsdp.bin")
            torch.save(s, out + "/optimizer.bin")
            torch.save({k: v + 1 for k, v in m.items()}, out + "/pytorch_model_fsdp_1.bin")
    if rank == 0:
        tied = {"lm_head.weight"} if case == "verl_dp3" else set()
        write_digests("%s/fsdp_%s.digests" % (output, case), tag,
                      {n: w for n, w in weights.items() if n not in tied}, states, "float32 3.0")


def fsdp1(case, output, world, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import (FullOptimStateDictConfig, FullStateDictConfig,
                                        ShardedOptimStateDictConfig, StateDictType)
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    mesh = (None if case in ("local", "verl_shardedtensor") else
            init_device_mesh("cpu", (world,)))
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Layer}), device_mesh=mesh,
                 use_orig_params=case != "verl_fsdp1", device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps(model, optimizer, rank)
    # With offload_to_cpu on the CPU, torch 2.15 returns one buffer as several states.
    o = FullStateDictConfig(offload_to_cpu=False), FullOptimStateDictConfig(offload_to_cpu=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *o):
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        whole = FSDP.optim_state_dict(model, optimizer)
    states = {n: {k: v.clone() for k, v in s.items()} for n, s in whole["state"].items()}
    tag = "global_step_3/actor" if case.startswith("verl") else "checkpoint_3"
    out = "%s/fsdp_%s/%s" % (output, case, tag)
    os.makedirs(out, exist_ok=True)
    if case == "full_fsdp1":
        if rank == 0:
            torch.save(weights, out + "/pytorch_model_fsdp.bin")
            torch.save(whole, out + "/optimizer.bin")
    elif case == "local":
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            torch.save(model.state_dict(), out + "/pytorch_model_fsdp_rank%d.bin" % rank)
            torch.save(FSDP.optim_state_dict(model, optimizer), out + "/optimizer_0_rank%d.bin" % rank)
    else:
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, None,
                                  ShardedOptimStateDictConfig()):
            m = model.state_dict()
            s = (optimizer.state_dict() if case == "verl_fsdp1" else
                 FSDP.optim_state_dict(model, optimizer))
        save_verl(out, world, rank, m, s)
    if rank == 0:
        refused = {"local": "refuse open\n", "verl_fsdp1": "refuse optimizer\n"}.get(case)
        if refused:
            with open("%s/fsdp_%s.digests" % (output, case), "w") as f:
                f.write("tag %s\n%s" % (tag, refused))
                if case == "verl_fsdp1":
                    for n, w in sorted(weights.items()):
                        f.write("weight %s fp32 %s\n" % (n, sha256(w)))
        else:
            write_digests("%s/fsdp_%s.digests" % (output, case), tag, weights, states, "float32 3.0")


def kinds(case, output, world, rank):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    from make_dcp_by_hand import Kinds

    model = wrap(case, Kinds(True, True), world)
    optimizer = torch.optim.AdamW(model.trained(), lr=1e-2)
    steps(model, optimizer, rank, 6, 5)
    weights, states = truth(model, optimizer)
    w, s = get_state_dict(model, optimizer)
    dcp.save({"model": w, "optim": s}, checkpoint_id="%s/fsdp_%s/ckpt" % (output, case))
    if rank == 0:
        path = "%s/fsdp_%s.digests" % (output, case)
        write_digests(path, "ckpt", {n: weights[n] for n in states}, states, "float32 3.0")
        with open(path, "a") as f:
            print("\n".join(model.kinds()), file=f)


def hf(case, output, world, rank):
    import torch.distributed.checkpoint as dcp

    model = wrap(case, Net(), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps(model, optimizer, rank)
    weights, _ = truth(model, optimizer)
    tag = "ckpt" if case == "hf_sharded" else ""
    out = "%s/fsdp_%s/%s" % (output, case, tag)
    index = {n: 1 + i % 2 for i, n in enumerate(model.state_dict())}
    w = dcp.HuggingFaceStorageWriter(out, fqn_to_index_mapping=index, save_distributed=True,
                                     enable_consolidation=case == "hf_consolidated")
    dcp.save(model.state_dict(), storage_writer=w)
    if rank == 0:
        write_digests("%s/fsdp_%s.digests" % (output, case), tag, weights,
                      {n: {} for n in weights}, tag and "int 0")


CASES = {"verl_dp3": (fsdp2, 3), "verl_hsdp": (fsdp2, 4), "verl_tp": (fsdp2, 4),
         "full": (fsdp2, 2), "sharded": (fsdp2, 2), "verl_fsdp1": (fsdp1, 2),
         "full_fsdp1": (fsdp1, 2), "local": (fsdp1, 2), "verl_shardedtensor": (fsdp1, 2),
         "kinds": (kinds, 2), "hf_sharded": (hf, 2), "hf_consolidated": (hf, 2)}


def work(rank, world, make, case, output, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(5)
    make(case, output, world, rank)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(output, *cases):
    for case in cases or CASES:
        make, world = CASES[case]
        mp.spawn(work, (world, make, case, output, 29500 + os.getpid() % 999), nprocs=world)


if __name__ == "__main__":
    main(*sys.argv[1:])
