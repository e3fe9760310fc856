# SPDX-License-Identifier: Apache-2.0
"""Shared by scripts that fork their ranks: end a rank, and compute the losses of a divided
batch."""

import os
import sys
import traceback

import torch
import torch.distributed

LENGTH = 5  # tokens of a row


def work_and_exit(work, *args):
    """End the process without waiting for threads of libraries."""
    status = 1
    try:
        work(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def batch(step, rows, vocabulary, rank, ranks):
    """Return the rank's rows of a step."""
    random = torch.Generator().manual_seed(step)
    ids = torch.randint(0, vocabulary, (rows, LENGTH), generator=random)
    return ids[rank * rows // ranks:(rank + 1) * rows // ranks]


def mean(loss, ranks):
    total = loss.detach().double() / ranks
    torch.distributed.all_reduce(total)
    return total.item()


def finish(case, rank, folder, losses):
    if rank == 0:
        torch.save(losses, os.path.join(folder, case["name"]))
    torch.distributed.barrier()
