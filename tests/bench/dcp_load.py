# SPDX-License-Identifier: Apache-2.0
"""Time loading a PyTorch distributed checkpoint into tensors sharded by rows, as FSDP2
shards them.

    dcp_load.py load RANKS DIR       print the milliseconds of the slowest rank, and the
                                     most bytes that a rank read, relative to its share
    dcp_load.py save RANKS DIR TO    load, and save by torch's dcp.save

Bytes are counted by read calls."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.tensor import Shard, zeros


def bytes_read():
    with open("/proc/self/io", encoding="ascii") as f:
        return int(f.readline().split()[1])


def new_state(metadata, mesh):
    state = {}
    for key, of in metadata.state_dict_metadata.items():
        if isinstance(of, BytesStorageMetadata):
            state[key] = None
        elif len(of.size):
            state[key] = zeros(of.size, dtype=of.properties.dtype, device_mesh=mesh,
                               placements=[Shard(0)])
        else:
            state[key] = torch.zeros(of.size, dtype=of.properties.dtype)
    return state


def load(directory, mesh):
    """Return the state, the milliseconds and the bytes read."""
    reader = dcp.FileSystemReader(directory)
    state = new_state(reader.read_metadata(), mesh)
    dist.barrier()
    before, start = bytes_read(), time.perf_counter()
    dcp.load(state, storage_reader=reader)
    return state, (time.perf_counter() - start) * 1000, bytes_read() - before


def rank_main(rank, ranks, meet, what, directory, to):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank,
                            world_size=ranks)
    state, took, got = load(directory, dist.init_device_mesh("cpu", (ranks,)))
    if what == "save":
        dcp.save(state, checkpoint_id=to)
    worst = torch.tensor([took, got], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    whole = sum(t.numel() * t.element_size() for t in state.values()
                if isinstance(t, torch.Tensor))
    if rank == 0:
        print(f"{worst[0]:.2f} {worst[1] / (whole / ranks):.3f}", flush=True)
    dist.destroy_process_group()


def main():
    what, ranks, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    to = sys.argv[4] if what == "save" else None
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as top:
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                rank_main(rank, ranks, os.path.join(top, "meet"), what, directory, to)
                sys.stdout.flush()
                os._exit(0)
            children.append(pid)
        failed = [pid for pid in children if os.waitpid(pid, 0)[1]]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
