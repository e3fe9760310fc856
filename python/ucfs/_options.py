# SPDX-License-Identifier: Apache-2.0
"""The options of ucfs(1) as keyword arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing import Literal, Sequence, TypedDict, Union

    from typing_extensions import Unpack as Unpack

    from ._library import Path

    class Options(TypedDict, total=False):
        """Options of a source. OPTIONS below describes them."""
        crc: Literal["exact", "zero"]
        stage: Literal["native", "any"]
        rules: Path
        preset: Literal["megatron-qkv-thirds", "megatron-qkv-by-head"]
        model: str
        head_dim: int
        hf_dtype: Literal["fp32", "bf16", "fp16"]
        hf_shard_size: str
        hf_config: Path
        dcp_style: Literal["fsdp2", "flat", "titan", "titan_fused", "accelerate", "lightning",
                           "fabric"]
        dcp_ranks: int
        ranks: Union[int, str, Sequence[Union[int, str]]]
        replace: bool
        check: bool
        follow_links: bool
        readahead: Union[int, str]
        deadline: Union[int, str]
        manifest: Path
        ca_file: Path
        s3_endpoint: str
        s3_region: str
        s3_anonymous: bool

OPTIONS = """

    Options, which ucfs(1) describes at length:

        crc="zero"          checksums of computed files are 0, which torch does not read
        stage="any"         files of ZeRO-3 with the parameters' shapes; "native": flat
        rules=FILE          how tensor-parallel ranks' slices are joined
        preset=NAME         the same: "megatron-qkv-thirds" or "megatron-qkv-by-head"
        model=NAME          which dict of a distributed checkpoint is the model
        head_dim=128        rows of a head, in fused projections of torchtitan
        hf_dtype="bf16"     type of TAG_hf: "fp32", "bf16" or "fp16"
        hf_shard_size="5GB" size of the files of TAG_hf
        hf_config=NAME      a directory, or a cached model, that has config.json
        dcp_style="titan"   layout of TAG_dcp: "fsdp2", "flat", "titan", "titan_fused",
                            "accelerate", "lightning" or "fabric"
        dcp_ranks=8         TAG_dcp as if so many ranks had saved it
        ranks=[8, "8_z1"]   lists TAG_dp8 and TAG_dp8_z1; others are found by name
        replace=True        TAG itself is what ranks=N makes of it
        check=True          look at all tags now
        follow_links=True   links may lead out of the source
        readahead="64M"     memory for what is read ahead from remote storage; 0: none
        deadline=30         seconds that a server may take
        manifest=FILE       names of the files of a server that does not list them
        ca_file=FILE        certificates
        s3_endpoint=URL, s3_region=NAME, s3_anonymous=True
"""


def describe(function: F) -> F:
    """Append the options to the documentation of a function that takes them."""
    function.__doc__ = (function.__doc__ or "").rstrip() + OPTIONS
    return function
