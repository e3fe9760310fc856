#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wheel.py VERSION MACHINE DIRECTORY PROGRAM...: a wheel that has programs.

pip installs them as commands beside Python's.  They must be static: the wheel's
tags promise that they run with any C library.
"""
import base64
import hashlib
import os
import sys
import zipfile

SUMMARY = "Mount DeepSpeed checkpoints as universal checkpoints"
EPOCH = (2026, 1, 1, 0, 0, 0)  # the same programs make the same wheel


def main(version, machine, directory, *programs):
    # Any glibc of the last decade, any musl.
    tags = [f"manylinux2014_{machine}", f"musllinux_1_1_{machine}"]
    info = f"ucfs-{version}.dist-info"
    metadata = (f"Metadata-Version: 2.1\nName: ucfs\nVersion: {version}\n"
                f"Summary: {SUMMARY}\nLicense: Apache-2.0\n")
    wheel = ("Wheel-Version: 1.0\nGenerator: ucfs\nRoot-Is-Purelib: false\n"
             + "".join(f"Tag: py3-none-{tag}\n" for tag in tags))
    files = [(f"ucfs-{version}.data/scripts/{os.path.basename(p)}",
              open(p, "rb").read(), 0o755) for p in programs]
    files += [(f"{info}/METADATA", metadata.encode(), 0o644),
              (f"{info}/WHEEL", wheel.encode(), 0o644)]
    record = ""
    for name, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        record += f"{name},sha256={digest.rstrip(b'=').decode()},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    files.append((f"{info}/RECORD", record.encode(), 0o644))

    path = os.path.join(directory, f"ucfs-{version}-py3-none-{'.'.join(tags)}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
