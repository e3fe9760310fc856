# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed's ZeRO, read without a conversion.

    import ucfs

    with ucfs.open("/data/run") as ckpt:                # no FUSE needed
        tag = ckpt[ckpt.latest]
        tag.parameters["lm_head.weight"].exp_avg[:10]   # reads ten rows
        model.load_state_dict(tag.state_dict("bf16"))

    with ucfs.mount("/data/run", ranks=[8]) as path:
        engine.load_checkpoint(path, tag="global_step10_dp8")

    fsspec.filesystem("ucfs", source="/data/run").ls("global_step10_hf")

Sources are what ucfs(1) mounts: a directory, a pack or a URL, or a list of those whose
files are one checkpoint. Keyword arguments are the options of ucfs(1): `crc="zero"`,
`replace=True`, `ranks=[2, 4]`. Functions raise `ucfs.Error`, and ValueError for what was
closed. Warnings go to the logger "ucfs".
"""

from ._arrays import Array, Checkpoint, Parameter, Tag, open
from ._commands import check, diff, info, materialize
from ._library import Error, version
from ._mount import Mount, mount

__all__ = [
    "Array", "Checkpoint", "Error", "Mount", "Parameter", "Tag", "check", "diff",
    "info", "materialize", "mount", "open", "version",
]
