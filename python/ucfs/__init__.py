# SPDX-License-Identifier: Apache-2.0
"""Read and mount DeepSpeed ZeRO checkpoints without converting them.

    import ucfs

    with ucfs.open("/data/run") as ckpt:                # no FUSE needed
        tag = ckpt[ckpt.latest]                         # or ckpt[-1], ckpt["global_step10"]
        tag.parameters["lm_head.weight"].exp_avg[:10]   # reads ten rows
        model.load_state_dict(tag.state_dict("bf16"))

    with ucfs.mount("/data/run", ranks=[8]) as path:
        engine.load_checkpoint(path, tag="global_step10_dp8")

    fsspec.filesystem("ucfs", source="/data/run").ls("global_step10_hf")

A source is what ucfs(1) mounts: a directory, a pack, a URL, or a list of these that
together hold one checkpoint. Options of ucfs(1) are keyword arguments: `crc="zero"`,
`replace=True`, `ranks=[2, 4]`. Failures raise `ucfs.Error`, which is also the exception
that Python has for the cause: FileNotFoundError, PermissionError, ValueError for an option
that there is not. Using a closed checkpoint raises ValueError. Warnings go to the logger "ucfs".

What `ucfs.open` returns, and what it contains, can be pickled: a worker that is sent it, or
was forked, opens the source again when it first uses it. Ctrl-C ends a call at once, also
one that waits for a server.
"""

from ._arrays import Array, Checkpoint, Parameter, Tag, open
from ._commands import check, diff, info, materialize
from ._library import Error, OptionError, version
from ._mount import Mount, mount

try:
    from fsspec import register_implementation
    # Wheels have an entry point; a directory of PYTHONPATH has none.
    register_implementation("ucfs", "ucfs._fsspec.UcfsFileSystem", clobber=True)
except ImportError:
    pass

__all__ = [
    "Array", "Checkpoint", "Error", "Mount", "OptionError", "Parameter", "Tag", "check", "diff",
    "info", "materialize", "mount", "open", "version",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # the library's, which need not be loaded before
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
