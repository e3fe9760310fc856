#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/good/ from a collection of real DeepSpeed checkpoints.

    make_digests.py COLLECTION OUTPUT

COLLECTION holds one directory per case, as DeepSpeed left it after four steps
(`latest`, `global_step4/`), with the tree that DeepSpeed's own converter made
of it (`global_step4_universal/`; for old releases also
`global_step4_universal_ds0.19.8/`, the same checkpoint converted by 0.19.8),
and `manifest.json`: for each case its recipe and, for each parameter, the
shape and the SHA-256 of the true tensors, gathered from the training
processes themselves before they saved, and perhaps `numbers`: what else the
optimizer keeps of its group, such as the step, by type and value.
make_cases.py makes such a collection.

For each case of CASES and REFUSED the checkpoint is copied to OUTPUT/<case>/
and the expected results are written to OUTPUT/<case>.digests; README.md in the
output describes the format.  A converter's file becomes a `file` line only if
the tensor in it is the true one, which is decided here from the
bytes.  Needs nothing but the standard library.
"""

import hashlib
import io
import json
import math
import os
import pickle
import re
import shutil
import sys
import zipfile

TAG = "global_step4"

# Supported checkpoints: data, tensor (Megatron's and AutoTP) and pipeline parallelism, mixtures of
# experts, without ZeRO and ZeRO 1 to 3, any release.
CASES = re.compile(r"((old[0-9.]+_)?(z[0123]|meg|pp2|tp[23])_.*|autotp.*"
                   r"|sp2_dp1_z[12].*|pp2_tp2.*|dsuc_gpt2_z3_offload_dp4"
                   r"|moe_ep[12]_dp2_z[12].*)$")

# Checkpoints that cannot be served: the files that show it ("open": names and model states,
# "shards": only the optimizer's; "optimizer": weights are served), and the reason.
REFUSED = {
    "meg_tp2_dp2_z1_uc02_uneven": ("open", "an uneven division that version"
                                   " 0.2 did not record"),
    "sp2_dp2_z3": ("shards", "half of the shards were overwritten while saving"),
}

# Files that the Hugging Face Trainer leaves beside a checkpoint.
TRAINER_FROM = "z1_no_ucinfo_dp2"
TRAINER_FILES = {
    "config.json": {
        "architectures": ["TinyForCausalLM"],
        "model_type": "tiny",
        "hidden_size": 6,
        "num_hidden_layers": 2,
        "torch_dtype": "float32",
    },
    "trainer_state.json": {
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": 1.0,
        "global_step": 4,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": [{"epoch": 1.0, "loss": 2.75, "step": 4}],
        "max_steps": 4,
        "num_train_epochs": 1,
    },
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read_bytes(path):
    with open(path, "rb") as f:
        return f.read()


class Tensor:
    """A strided view of a storage, as a pickled tensor describes it."""

    def __init__(self, storage, offset, shape, stride, *_):
        self.key, self.kind = storage
        self.itemsize = ITEMSIZES[self.kind]
        self.offset = offset
        self.shape = shape
        self.stride = stride

    def is_contiguous(self):
        expect = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride)):
            if size != 1 and stride != expect:
                return False
            expect *= size
        return True

    def slice(self):
        first = self.offset * self.itemsize
        return slice(first, first + math.prod(self.shape) * self.itemsize)


class Inert:
    """Stands for any object whose contents do not matter."""

    def __init__(self, *_):
        pass

    def __setstate__(self, state):
        pass


ITEMSIZES = {"DoubleStorage": 8, "LongStorage": 8, "FloatStorage": 4,
             "IntStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2,
             "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1,
             "BoolStorage": 1}


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if name in ITEMSIZES:
            return name
        if name == "_rebuild_tensor_v2":
            return Tensor
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return Inert

    def persistent_load(self, pid):
        _, kind, key, _, _ = pid
        return key, kind


def widen(bf16):
    """Convert bfloat16 to float32: the same upper half, and zeros."""
    wide = bytearray(2 * len(bf16))
    wide[2::4] = bf16[0::2]
    wide[3::4] = bf16[1::2]
    return bytes(wide)


def tensor_bytes(path):
    """Return the single tensor of a universal parameter file, as float32."""
    with zipfile.ZipFile(path) as z:
        stem = z.namelist()[0].split("/")[0]
        obj = Unpickler(io.BytesIO(z.read(stem + "/data.pkl"))).load()
        tensor = obj["param"] if isinstance(obj, dict) else obj
        if not tensor.is_contiguous():
            sys.exit(path + ": the tensor is not contiguous")
        data = z.read(f"{stem}/data/{tensor.key}")[tensor.slice()]
        return widen(data) if tensor.kind == "BFloat16Storage" else data


def tree_files(top):
    """List every file below `top`, as a relative path, sorted."""
    found = []
    for folder, _, names in os.walk(top):
        found += [os.path.relpath(os.path.join(folder, n), top) for n in names]
    return sorted(found)


def truths(case):
    """Map (param, state) to the digest of the true tensor, for trained parameters."""
    out = {}
    for name, param in case["params"].items():
        if param["frozen"]:
            continue
        for state, value in param.items():
            if state != "lp" and re.fullmatch("[0-9a-f]{64}", str(value)):
                out[name, state] = value
    return out


def reference_tree(case_dir):
    """Return the converter's best attempt, or None; and whether it is whole."""
    for name in TAG + "_universal_ds0.19.8", TAG + "_universal":
        tree = os.path.join(case_dir, name)
        if os.path.isdir(tree):
            names = os.listdir(tree)
            return tree, any(n.endswith("_model_states.pt") for n in names)
    return None, False


def left_out(tree, truth):
    """Return states that the converter does not know and omits."""
    for param, state in truth:
        path = f"zero/{param}/{state}.pt"
        if not os.path.exists(os.path.join(tree, path)):
            yield f"exists {path}"


def file_lines(tree, truth):
    """Return a line for each file of the converter's tree.  If its tensor is wrong, only its
    existence counts."""
    for path in tree_files(tree):
        full = os.path.join(tree, path)
        match = re.fullmatch(r"zero/(.+)/([^/]+)\.pt", path)
        expected = truth.get(match.groups()) if match else None
        if expected and sha256(tensor_bytes(full)) != expected:
            yield f"exists {path}"
            continue
        data = read_bytes(full)
        yield f"file {path} {len(data)} {sha256(data)}"


def shape_text(shape):
    return "x".join(map(str, shape)) or "-"


def digest_lines(case, case_dir):
    truth = truths(case)
    for name, param in sorted(case["params"].items()):
        if not param["frozen"]:
            yield f"shape {name} {shape_text(param['shape'])}"
    for (name, state), digest in sorted(truth.items()):
        yield f"truth {name} {state} {digest}"
    for name, param in sorted(case["params"].items()):
        for state, (kind, value) in param.get("numbers", {}).items():
            # Trees of stage 3 contain only tensors.
            if case["recipe"].get("stage", 0) < 3:
                yield f"number {name} {state} {kind} {value}"
    tree, whole = reference_tree(case_dir)
    if tree:
        yield from file_lines(tree, truth)
    if whole:
        yield from left_out(tree, truth)
        yield "complete"


def write_digests(output, name, tag, about, lines):
    with open(os.path.join(output, name + ".digests"), "w") as f:
        f.write(f"# {about}\ntag {tag}\n")
        f.writelines(line + "\n" for line in lines)


def copy_plain(source, target):
    """Copy files and directories with ordinary modes."""
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
        for name in sorted(os.listdir(source)):
            copy_plain(os.path.join(source, name), os.path.join(target, name))
    else:
        shutil.copyfile(source, target)
        os.chmod(target, 0o644)


def copy_checkpoint(case_dir, target):
    os.makedirs(target, mode=0o755, exist_ok=True)
    for name in "latest", TAG:
        copy_plain(os.path.join(case_dir, name), os.path.join(target, name))


def make_trainer(collection, output, case):
    folder = os.path.join(output, "hf_trainer", "checkpoint-4")
    case_dir = os.path.join(collection, TRAINER_FROM)
    copy_checkpoint(case_dir, folder)
    for name, content in TRAINER_FILES.items():
        with open(os.path.join(folder, name), "w") as f:
            json.dump(content, f, indent=2)
            f.write("\n")
    write_digests(output, "hf_trainer", f"checkpoint-4/{TAG}", about(case),
                  digest_lines(case, case_dir))


def about(case):
    ranks = "rank" if case["world"] == 1 else "ranks"
    return f"DeepSpeed {case['deepspeed']}, {case['world']} {ranks}"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    collection, output = sys.argv[1:]
    os.umask(0o022)
    os.makedirs(output, exist_ok=True)
    with open(os.path.join(collection, "manifest.json")) as f:
        manifest = json.load(f)

    for name, case in manifest.items():
        case_dir = os.path.join(collection, name)
        remark = about(case)
        if CASES.match(name) and name not in REFUSED:
            lines = digest_lines(case, case_dir)
        elif name in REFUSED:
            when, why = REFUSED[name]
            lines = [f"refuse {when}"]
            remark += "; " + why
        else:
            continue
        copy_checkpoint(case_dir, os.path.join(output, name))
        write_digests(output, name, TAG, remark, lines)
    if TRAINER_FROM in manifest:
        make_trainer(collection, output, manifest[TRAINER_FROM])


if __name__ == "__main__":
    main()
