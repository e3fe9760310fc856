# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of tests/good, and their digests."""

import hashlib
import logging
import os

GOOD = os.environ["GOOD"]
logging.getLogger("ucfs").setLevel(logging.ERROR)


def run(name):
    return os.path.join(GOOD, name)


def statements(name, kind="digests"):
    """The lines of a checkpoint's digests, as lists of words."""
    path = f"{run(name)}.{kind}"
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [line.split() for line in f if line.strip() and line[0] != "#"]


def cases(refused=False):
    names = sorted(n[:-8] for n in os.listdir(GOOD) if n.endswith(".digests"))
    return [n for n in names if (["refuse"] in [s[:1] for s in statements(n)]) == refused]


def tag_path(name):
    return os.path.join(run(name), next((s[1] for s in statements(name) if s[0] == "tag"), ""))


def options(name):
    """The options that a checkpoint needs to be read as its digests state."""
    return {s[0]: run(s[1]) for s in statements(name) if s[0] == "rules"}


def files(name):
    """Size and digest of each file of the universal tree, by its path."""
    return {s[1]: (int(s[2]), s[3]) for s in statements(name) if s[0] == "file"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def shape(text):
    return () if text == "-" else tuple(map(int, text.split("x")))
