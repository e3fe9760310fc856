# SPDX-License-Identifier: Apache-2.0
"""Mounts that end with the process that made them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import weakref
from typing import Any, IO, List, Optional

from ._library import Path, Paths, error, log, option_texts, path_list, with_certificates

# keep.sh REMOVE MOUNTPOINT PROGRAM ARGUMENT...: mount, report it, and unmount when the
# standard input ends, which it does even if Python is killed. The unmount is lazy: files
# that are open stay readable. PR_SET_PDEATHSIG would act when a thread of Python ends.
_KEEP = r"""
trap '' HUP INT TERM PIPE
remove=$1 mountpoint=$2
shift 2
"$@" </dev/null >&2
status=$?
if [ $status = 0 ]; then
	echo mounted
	read -r _
	fusermount3 -u -z -- "$mountpoint" || umount -l -- "$mountpoint"
fi 2>/dev/null
[ -z "$remove" ] || rmdir -- "$mountpoint"
exit $status
"""


def find_program() -> str:
    """Return the program ucfs: $UCFS_PROGRAM, the wheel's, or that of PATH."""
    beside = os.path.join(os.path.dirname(__file__), "bin", "ucfs")
    found = os.environ.get("UCFS_PROGRAM") or (
        beside if os.path.exists(beside) else shutil.which("ucfs"))
    if not found:
        raise error(errno.ENOENT, "there is no program ucfs in PATH: install ucfs, or "
                    "set UCFS_PROGRAM")
    return found


class Mount:
    """A mount on `path`. It ends with `close`, with the `with` block, with the last
    reference to it, or with the process, even a killed one."""

    def __init__(self, paths: Paths, mountpoint: Optional[Path], **options: Any) -> None:
        sources = path_list(paths)
        program = find_program()
        if shutil.which("fusermount3"):
            options.setdefault("auto_unmount", True)
        arguments: List[str] = []
        for text in option_texts(with_certificates(sources, options)):
            arguments += ["-o", text.replace("\\", "\\\\").replace(",", "\\,")]
        self.path = os.fspath(mountpoint or tempfile.mkdtemp(prefix="ucfs-"))
        with tempfile.TemporaryFile() as said:
            keeper = subprocess.Popen(
                ["sh", "-c", _KEEP, "keep", "" if mountpoint else "remove",
                 os.path.abspath(self.path), program, *arguments, *sources,
                 self.path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
                start_new_session=True)
            self.close = weakref.finalize(self, _unmount, keeper, os.getpid())
            assert keeper.stdout
            mounted = keeper.stdout.readline()
            text = _said(said)
        if not mounted:
            self.close()
            raise error(errno.EIO if os.path.exists("/dev/fuse") else errno.ENODEV, text)
        if text:
            log.warning("%s", text)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _said(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(line[6:] if line.startswith("ucfs: ") else line for line in lines)


def _unmount(keeper: Any, pid: int) -> None:
    keeper.stdin.close()
    keeper.stdout.close()
    if pid == os.getpid():
        keeper.wait()


def mount(source: Paths, mountpoint: Optional[Path] = None, **options: Any) -> Mount:
    """Mount a source with ucfs(1), by default on a new temporary directory, and wait until
    it is served:

        with ucfs.mount("/data/run", ranks=[8]) as path:
            ...

    Files that are open or mapped stay readable after the end. Raises ucfs.Error with the
    message of ucfs, which says what can be done.
    """
    return Mount(source, mountpoint, **options)
