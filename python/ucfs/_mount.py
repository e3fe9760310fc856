# SPDX-License-Identifier: Apache-2.0
"""Mounts that end with the process that made them."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
import weakref
from typing import IO, TYPE_CHECKING, Any, List, Optional, Set

from ._library import Path, Paths, error, log, option_texts, path_list, with_certificates
from ._options import describe

if TYPE_CHECKING:
    from ._options import Options, Unpack

# Sockets to the keepers of ucfs, which unmount when these are closed.
_ends: Set[socket.socket] = set()


def _forget() -> None:
    """A forked process keeps no mount of its parent."""
    while _ends:
        _ends.pop().close()


os.register_at_fork(after_in_child=_forget)


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
        arguments: List[str] = []
        for text in option_texts(with_certificates(sources, options)):
            arguments += ["-o", text.replace("\\", "\\\\").replace(",", "\\,")]
        self.path = os.fspath(mountpoint or tempfile.mkdtemp(prefix="ucfs-"))
        end, other = socket.socketpair()
        _ends.add(end)
        self.close = weakref.finalize(self, _unmount, end, os.getpid(),
                                      None if mountpoint else self.path)
        arguments += ["-o", f"until={other.fileno()}"]
        if not mountpoint:
            arguments += ["-o", "rmdir"]  # even if Python is killed
        try:
            with other, tempfile.TemporaryFile() as said:
                status = subprocess.call(
                    [program, *arguments, *sources, self.path], pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
                text = _said(said)
            if status:
                raise error(errno.EIO if os.path.exists("/dev/fuse") else errno.ENODEV, text)
        except BaseException:
            self.close()
            raise
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


def _unmount(end: socket.socket, pid: int, directory: Optional[str]) -> None:
    """End the mount, and wait until it has ended."""
    if pid != os.getpid():
        return
    try:
        end.shutdown(socket.SHUT_WR)
        end.recv(1)
    except OSError:  # it has ended before
        pass
    finally:
        _ends.discard(end)
        end.close()
    if directory and os.path.isdir(directory):  # the mount was not attempted
        os.rmdir(directory)


@describe
def mount(source: Paths, mountpoint: Optional[Path] = None,
          **options: Unpack[Options]) -> Mount:
    """Mount a source with ucfs(1), by default on a new temporary directory, and wait until
    it is served:

        with ucfs.mount("/data/run", ranks=[8]) as path:
            ...

    Files that are open or mapped stay readable after the end. Raises ucfs.Error with the
    message of ucfs, which says what can be done.
    """
    return Mount(source, mountpoint, **options)
