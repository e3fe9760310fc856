# SPDX-License-Identifier: Apache-2.0
"""Time loading a PyTorch distributed checkpoint into tensors sharded by rows, as FSDP2
shards them.

    dcp_load.py load RANKS DIR       print the milliseconds of the slowest rank
    dcp_load.py save RANKS DIR TO    load, and save by torch's dcp.save
    dcp_load.py share RANKS DIR      print the most bytes that a rank reads, relative to
                                     its share, by its read calls

`share` loads only the part of that rank, which chunks and rows tell, so there may be more
ranks than processes can run."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.tensor import Shard, zeros
from torch.testing._internal.distributed.fake_pg import FakeStore


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
    """Return the state and the milliseconds."""
    reader = dcp.FileSystemReader(directory)
    state = new_state(reader.read_metadata(), mesh)
    dist.barrier()
    start = time.perf_counter()
    dcp.load(state, storage_reader=reader)
    return state, (time.perf_counter() - start) * 1000


def rank_main(rank, ranks, meet, what, directory, to):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank,
                            world_size=ranks)
    state, took = load(directory, dist.init_device_mesh("cpu", (ranks,)))
    if what == "save":
        dcp.save(state, checkpoint_id=to)
    worst = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{worst:.2f}", flush=True)
    dist.destroy_process_group()


def chunks_of(metadata, rank, ranks):
    """Return the bytes of the chunks that contain rows of a rank."""
    total = 0
    for of in metadata.state_dict_metadata.values():
        if isinstance(of, BytesStorageMetadata) or not of.size:
            continue
        rows = -(-of.size[0] // ranks)
        for chunk in of.chunks:
            begin = chunk.offsets[0]
            if begin < (rank + 1) * rows and rank * rows < begin + chunk.sizes[0]:
                total += chunk.sizes.numel() * of.properties.dtype.itemsize
    return total


def share(ranks, directory):
    reader = dcp.FileSystemReader(directory)
    metadata = reader.read_metadata()
    rank = max(range(ranks), key=lambda i: chunks_of(metadata, i, ranks))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    state = new_state(metadata, dist.init_device_mesh("cpu", (ranks,)))
    before = bytes_read()
    dcp.load(state, storage_reader=reader, no_dist=True)
    print(f"{(bytes_read() - before) * ranks / chunks_of(metadata, 0, 1):.3f}")


def main():
    what, ranks, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    to = sys.argv[4] if what == "save" else None
    if what == "share":
        share(ranks, directory)
        return 0
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
