#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Read every zero/**/*.pt of mounted checkpoints in every usual way.

    torch_load.py GOOD MOUNTS

GOOD is tests/good; MOUNTS has one mount per case, under the case's name.
For each file:

  * torch.load plain, with mmap=True, and with weights_only=True, if this torch
    supports them, gives the same values, and the tensor of a state has the
    shape and the digest in GOOD/<case>.digests.
  * weights_only=True may be refused only for two kinds of files, and only if
    DeepSpeed itself put an object of a class into it: optimizer_state.pt, and
    parameters made of sub-parameters, which have a SubparamShape.  (torch 1.13
    also refuses floating-point numbers there.)
  * the archive passes zipfile's testzip() and `unzip -t`.

Needs torch 1.13 or later, but not DeepSpeed: stand-ins replace its classes if
it is not installed.
"""

import collections
import ctypes
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import pickletools
import shutil
import subprocess
import sys
import types
import warnings
import zipfile

import torch

# Modules whose names torch's restricted unpickler accepts.
OWN_MODULES = ("torch", "collections")

SUBPARAM = "deepspeed.checkpoint.universal_checkpoint.SubparamShape"

# Ignore warnings about old typed storages, which torch itself writes.
warnings.filterwarnings("ignore", message="TypedStorage is deprecated")


class StandIn:
    """Stands for an object of a class that is not installed here."""

    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.state = state


class StandInModule(types.ModuleType):
    """Stands for a package in which every name is such a class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (StandIn,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports DeepSpeed's modules if there is no DeepSpeed.  (torch.load has pickle_module= for
    this, but 1.13 forgets it.)"""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "deepspeed":
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        return StandInModule(spec.name)

    def exec_module(self, module):
        pass


PARAMETERS = set(inspect.signature(torch.load).parameters)


def load_plain(path):
    if "weights_only" in PARAMETERS:
        return torch.load(path, weights_only=False)
    return torch.load(path)


def load_mapped(path):
    return torch.load(path, mmap=True, weights_only=False)


def load_restricted(path):
    return torch.load(path, weights_only=True)


def ways():
    """Return name -> function: this torch's other ways to load."""
    out = {}
    if "mmap" in PARAMETERS:
        out["mmap"] = load_mapped
    if "weights_only" in PARAMETERS:
        out["weights_only"] = load_restricted
    return out


def raw(tensor):
    """Return a tensor's values as bytes, in order."""
    tensor = tensor.detach().contiguous()
    length = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), length) if length else b""


def same(a, b):
    if isinstance(a, torch.Tensor):
        return (isinstance(b, torch.Tensor) and a.dtype == b.dtype
                and a.shape == b.shape and a.device == b.device
                and a.requires_grad == b.requires_grad and raw(a) == raw(b))
    if isinstance(a, dict):
        return (isinstance(b, dict) and list(a) == list(b)
                and all(same(a[k], b[k]) for k in a))
    if isinstance(a, (list, tuple)):
        return (type(a) is type(b) and len(a) == len(b)
                and all(map(same, a, b)))
    if isinstance(a, StandIn) or hasattr(a, "__dict__"):
        return type(a).__name__ == type(b).__name__ and same(vars(a), vars(b))
    return a == b


def globals_of(archive):
    """Return the classes and functions that a file's pickle names."""
    stem = archive.namelist()[0].split("/")[0]
    data = archive.read(stem + "/data.pkl")
    return {arg for op, arg, _ in pickletools.genops(data)
            if op.name == "GLOBAL"}


def read_digests(path):
    """Return the tag, (param, state) -> digest, and param -> shape."""
    tag, truth, shapes = None, {}, {}
    with open(path, encoding="utf-8") as f:
        for fields in map(str.split, f):
            if fields[0] == "tag":
                tag = fields[1]
            elif fields[0] == "truth":
                truth[fields[1], fields[2]] = fields[3]
            elif fields[0] == "shape":
                shapes[fields[1]] = [int(d) for d in fields[2].split("x")
                                     if d != "-"]
    return tag, truth, shapes


class Run:
    def __init__(self):
        self.failures = 0
        self.passed = collections.Counter()
        self.refused = collections.Counter()
        self.ways = ways()
        self.unzip = shutil.which("unzip")

    def fail(self, path, text):
        print(f"{path}: {text}")
        self.failures += 1

    def check_archive(self, path):
        """The globals that the file's pickle names, or None if the file is no archive."""
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
                names = globals_of(archive)
        except (OSError, zipfile.BadZipFile, KeyError) as e:
            self.fail(path, f"zipfile: {e}")
            return None
        if damaged:
            self.fail(path, f"zipfile: {damaged} is damaged")
        else:
            self.passed["zipfile"] += 1
        if self.unzip:
            self.check_unzip(path)
        return names

    def check_unzip(self, path):
        done = subprocess.run([self.unzip, "-tqq", path], text=True,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode or done.stdout:
            self.fail(path, f"unzip: {done.returncode}: {done.stdout.strip()}")
        else:
            self.passed["unzip"] += 1

    def check_truth(self, path, value, truth, shape):
        """Return a state's tensor: bare and flat from ZeRO 3, else in a dict."""
        tensor = value["param"] if isinstance(value, dict) else value
        if isinstance(value, dict) and shape and list(tensor.shape) != shape:
            self.fail(path, f"shape {list(tensor.shape)}, not {shape}")
        if hashlib.sha256(raw(tensor.float())).hexdigest() != truth:
            self.fail(path, "not the values that were trained")
        else:
            self.passed["true values"] += 1

    def check_way(self, path, way, plain, foreign):
        try:
            value = self.ways[way](path)
        except Exception as e:  # any exception of torch is a finding
            unknown = sorted(foreign)
            if "Unsupported operand 71" in str(e):  # 'G', a number
                unknown = ["floating-point numbers"]
            if (way == "weights_only" and unknown
                    and (path.endswith("/zero/optimizer_state.pt")
                         or unknown == [SUBPARAM])):
                self.refused[", ".join(unknown)] += 1
            else:
                self.fail(path, f"{way}: {type(e).__name__}: {e}")
            return
        if same(plain, value):
            self.passed[way] += 1
        else:
            self.fail(path, f"{way}: other values than plainly loaded")

    def check_file(self, path, truth, shape):
        names = self.check_archive(path)
        if names is None:
            return
        foreign = {n.replace(" ", ".") for n in names
                   if n.split()[0].split(".")[0] not in OWN_MODULES}
        try:
            plain = load_plain(path)
        except Exception as e:  # the same
            self.fail(path, f"plain: {type(e).__name__}: {e}")
            return
        self.passed["plain"] += 1
        for way in self.ways:
            self.check_way(path, way, plain, foreign)
        if truth:
            self.check_truth(path, plain, truth, shape)

    def check_case(self, good, mounts, name):
        tag, truth, shapes = read_digests(os.path.join(good,
                                                       name + ".digests"))
        # The mount of a Hugging Face directory is the tree itself, not a tag.
        tree = "" if tag in (None, ".") else tag + "_universal"
        zero = os.path.join(mounts, name, tree, "zero")
        todo = dict(truth)
        for folder, _, files in os.walk(zero):
            for file in sorted(files):
                param = os.path.relpath(folder, zero)
                key = param, file[:-len(".pt")]
                self.check_file(os.path.join(folder, file),
                                todo.pop(key, None), shapes.get(param))
        for param, state in todo:
            self.fail(zero, f"{param}/{state}.pt is not there")

    def report(self, cases):
        print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, "
              f"{cases} checkpoints; files that passed:")
        for what, count in self.passed.items():
            print(f"  {count:6} {what}")
        for missing in {"mmap", "weights_only"} - PARAMETERS:
            print(f"  this torch has no {missing}")
        if not self.unzip:
            print("  no unzip here")
        for unknown, count in sorted(self.refused.items()):
            print(f"  {count:6} files refused by weights_only for {unknown}")
        print(f"{self.failures} failed")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    good, mounts = sys.argv[1:]
    if not importlib.util.find_spec("deepspeed"):
        sys.meta_path.append(StandInFinder())
    run = Run()
    cases = sorted(os.listdir(mounts))
    for name in cases:
        run.check_case(good, mounts, name)
    run.report(len(cases))
    return 1 if run.failures or not run.passed["plain"] else 0


if __name__ == "__main__":
    sys.exit(main())
