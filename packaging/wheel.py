#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wheel.py VERSION MACHINE SOURCE DIRECTORY [BUILT]

Packs the Python package of the tree SOURCE, and what was built for it below BUILT, into a
wheel in DIRECTORY.  Its tag is the oldest glibc that has the symbols of its programs.
Without BUILT the package needs a system that has the library and the programs.
SOURCE_DATE_EPOCH is the time of its files: the same files make the same wheel.
"""
import base64
import hashlib
import os
import re
import sys
import time
import zipfile

METADATA = """\
Metadata-Version: 2.1
Name: ucfs
Version: {version}
Summary: Mount DeepSpeed checkpoints as universal checkpoints, or read them without a mount
License: Apache-2.0
License-File: LICENSE
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.8
Requires-Dist: numpy
Provides-Extra: fsspec
Requires-Dist: fsspec; extra == "fsspec"
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: ucfs
Root-Is-Purelib: {pure}
Tag: py3-none-{tag}
"""
ENTRY_POINTS = """\
[fsspec.specs]
ucfs = ucfs._fsspec:UcfsFileSystem
"""
# Does not import the package, which takes longer than the program.
COMMAND = """\
#!python
import importlib.util
import os
import sys

package = os.path.dirname(importlib.util.find_spec("ucfs").origin)
program = os.path.join(package, "bin", "{name}")
os.execv(program, [program] + sys.argv[1:])
"""


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def below(top, ends=""):
    """(path below `top`, contents), in order."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(top)
             for name in names if name.endswith(ends)]
    return [(os.path.relpath(path, top), read(path)) for path in sorted(paths)]


def platform_tag(machine, programs):
    if not programs:
        return "any"
    symbols = re.findall(rb"\0GLIBC_2\.(\d+)", b"".join(programs))
    return f"manylinux_2_{max(map(int, symbols))}_{machine}"


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"{name},sha256={digest.rstrip(b'=').decode()},{len(data)}\n"


def main(version, machine, source, directory, built=""):
    info = f"ucfs-{version}.dist-info"
    package = os.path.join(source, "python", "ucfs")
    programs = [(name, data) for name, data in below(built) if data[:4] == b"\x7fELF"]
    platform = platform_tag(machine, [data for _, data in programs])
    files = [(f"ucfs/{name}", data, 0o644) for name, data in below(package, (".py", "py.typed"))]
    files += [(f"ucfs/{name}", data, 0o755) for name, data in programs]
    files += [(f"ucfs-{version}.data/scripts/{os.path.basename(name)}",
               COMMAND.format(name=os.path.basename(name)).encode(), 0o755)
              for name, _ in programs if name.startswith("bin/")]
    # Below the prefix: man(1) looks beside the directories of PATH.
    files += [(f"ucfs-{version}.data/data/share/man/man{name[-1]}/{name}", data, 0o644)
              for name, data in below(os.path.join(source, "man"), (".1", ".5", ".7"))
              if programs and not name.startswith(("uctrain", "ucplot"))]
    files += [(f"{info}/{name}", data, 0o644) for name, data in [
        ("METADATA", METADATA.format(version=version,
                                     readme=read(source, "README.md").decode()).encode()),
        ("WHEEL", WHEEL.format(tag=platform, pure=not programs).encode()),
        ("entry_points.txt", ENTRY_POINTS.encode()),
        ("LICENSE", read(source, "LICENSE"))]]
    files += [(f"{info}/{name}", data, 0o644) for name, data in below(built)
              if name.startswith("licenses/")]
    record = "".join(record_line(name, data) for name, data, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))

    # A zip file knows no time before 1980.
    when = max(time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6], (1980, 1, 1, 0, 0, 0))
    path = os.path.join(directory, f"ucfs-{version}-py3-none-{platform}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    main(*sys.argv[1:])
