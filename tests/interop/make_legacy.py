#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the legacy_* cases of tests/good/: checkpoints in torch's old container.

    make_legacy.py [DIRECTORY]          default: tests/good beside this file

DeepSpeed writes that container when its configuration says
`"checkpoint": {"checkpoint_serialization": false}`, by torch.save(...,
_use_new_zipfile_serialization=False).  Here each file of the cases in CASES is
loaded and saved again in this way.  The expected results are those of the
original, except for the model states, which are copied unchanged: only their
lines differ in the digests.

In this container torch names storages by their addresses, so that the files
differ each time.  Needs torch and deepspeed.
"""

import hashlib
import os
import sys

import torch

CASES = "z1_tied_frozen_buffers_dp2", "z2_bf16_master_bf16_dp2", "z3_fp32_dp2"
TAG = "global_step4"


def convert(source, target):
    obj = torch.load(source, map_location="cpu", weights_only=False)
    torch.save(obj, target, pickle_protocol=2,
               _use_new_zipfile_serialization=False)
    os.chmod(target, 0o644)


def digest_lines(source, tag_dir):
    with open(source) as f:
        lines = f.read().splitlines()
    yield lines[0] + ", saved again without zip"
    for line in lines[1:]:
        fields = line.split()
        if fields[0] == "file" and fields[1].endswith("_model_states.pt"):
            with open(os.path.join(tag_dir, fields[1]), "rb") as f:
                data = f.read()
            digest = hashlib.sha256(data).hexdigest()
            line = f"file {fields[1]} {len(data)} {digest}"
        yield line


def make_case(good, case):
    source = os.path.join(good, case)
    target = os.path.join(good, "legacy_" + case)
    os.makedirs(os.path.join(target, TAG), exist_ok=True)
    with open(os.path.join(target, "latest"), "w") as f:
        f.write(TAG)
    for name in sorted(os.listdir(os.path.join(source, TAG))):
        convert(os.path.join(source, TAG, name),
                os.path.join(target, TAG, name))
    lines = list(digest_lines(source + ".digests", os.path.join(target, TAG)))
    with open(target + ".digests", "w") as f:
        f.writelines(line + "\n" for line in lines)


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    good = os.path.join(here, "..", "good")
    os.umask(0o022)
    for case in CASES:
        make_case(sys.argv[1] if len(sys.argv) == 2 else good, case)


if __name__ == "__main__":
    main()
