# SPDX-License-Identifier: Apache-2.0
"""An open source: directories and files as in a mount, by their paths below its root."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import mmap
import os
import stat
import threading
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Dict, List, Optional, Tuple

from ._handles import Handle, in_thread, new_context
from ._library import (PIECE, Attr, Entry, Paths, call, error, library, path_array,
                       path_list, with_certificates)

_PIECE_BYTES = 32 << 20  # per call: Python handles signals between calls
_HUGE_BYTES = 4 << 20


_reopening = threading.RLock()  # held while a forked process reopens its parent's sources


def _forget() -> None:
    global _reopening
    _reopening = threading.RLock()


os.register_at_fork(after_in_child=_forget)


class Source:
    """An open source. Threads may share it. A forked process opens it again when it first
    uses it."""

    def __init__(self, paths: Paths, options: Dict[str, Any]) -> None:
        self.paths = path_list(paths)
        self.options = options
        self.remote = any("://" in path for path in self.paths)  # reads may have to wait
        self.absolute = [p if "://" in p or p.startswith("{") else os.path.abspath(p)
                          for p in self.paths]
        self._handle = self._new_handle()

    def _new_handle(self) -> Handle:
        handle = new_context(with_certificates(self.paths, self.options), self)
        try:
            in_thread(lambda: self._open(handle))
        except BaseException:
            handle.close_later()
            raise
        return handle

    @property
    def handle(self) -> Handle:
        """The handle of this process."""
        if not self._handle.is_own() and not self._handle.closed:
            with _reopening:
                if not self._handle.is_own():
                    self._handle = self._new_handle()
        return self._handle

    def _open(self, handle: Handle) -> None:
        with handle.lock():
            u = handle.get()
            call("uckpt_open", u, path_array(self.paths), len(self.paths))
            self.is_view: bool = library().uckpt_is_view(u)
            self.root: str = os.fsdecode(library().uckpt_source_root(u, 0) or b"")

    def __reduce__(self) -> Tuple[Any, ...]:
        return _reopen, (self.absolute, self.options)

    def close(self) -> None:
        self._handle.close()

    def _find(self, u: c_void_p, path: str) -> int:
        node = c_uint64()
        call("uckpt_find", u, os.fsencode(path.strip("/")), byref(node), path=path)
        return node.value

    def stat(self, path: str) -> Attr:
        """The attributes of the file that the path leads to; FileNotFoundError."""
        return in_thread(lambda: self._stat(path))

    def _stat(self, path: str) -> Attr:
        attr = Attr()
        handle = self.handle
        with handle.lock():
            u = handle.get()
            call("uckpt_stat", u, self._find(u, path), byref(attr), path=path)
        return attr

    def list(self, path: str) -> Dict[str, Optional[Attr]]:
        """Return the names in a directory, with the attributes of files and None for
        directories. Symbolic links are followed; links whose target does not exist, or is
        outside of the run, have their own attributes."""
        return in_thread(lambda: self._list(path))

    def _list(self, path: str) -> Dict[str, Optional[Attr]]:
        found: Dict[str, Optional[Attr]] = {}
        handle = self.handle
        with handle.lock():
            u = handle.get()
            d, pos, entry = c_void_p(), c_uint64(), Entry()
            call("uckpt_dir_open", u, self._find(u, path), byref(d), path=path)
            try:
                while call("uckpt_dir_next", d, byref(pos), byref(entry), path=path):
                    name = os.fsdecode(entry.name)
                    try:
                        found[name] = self._entry(u, entry, f"{path}/{name}")
                    except FileNotFoundError:  # it was removed
                        pass
            finally:
                library().uckpt_dir_close(d)
        return found

    def _entry(self, u: c_void_p, entry: Entry, path: str) -> Optional[Attr]:
        if entry.type == stat.S_IFDIR:  # stat would plan a view
            return None
        attr = Attr()
        call("uckpt_stat", u, entry.node, byref(attr), path=path)
        if stat.S_ISLNK(attr.mode):
            try:
                attr = self.stat(path)
            except OSError:  # opening it raises the error
                pass
        return None if stat.S_ISDIR(attr.mode) else attr

    def open(self, path: str) -> File:
        """Open a file for reading. Closing the source closes it, too."""
        return File(self, path)


# Sources that were sent to this process: one for all objects with the same source.
_reopened: Dict[str, weakref.ref[Source]] = {}


def _reopen(paths: List[str], options: Dict[str, Any]) -> Source:
    key = repr((paths, sorted(options.items())))
    kept = _reopened.get(key)
    source = kept() if kept else None
    if not source or source.handle.closed or not source.handle.is_own():
        source = Source(paths, options)
        _reopened[key] = weakref.ref(source)
    return source


class File(io.RawIOBase):
    """A file of a source as a raw binary stream. Threads may share `pread`."""

    def __init__(self, source: Source, path: str) -> None:
        super().__init__()
        self.name = path
        self._source = source  # must not be collected earlier
        self._pos = 0
        self._handle = Handle(self, "uckpt_file_close", source.handle)
        self.size: int = in_thread(lambda: self._open(self._handle))

    def _open(self, handle: Handle) -> int:
        source = self._source.handle
        with source.lock():
            u = source.get()
            call("uckpt_file_open", u, self._source._find(u, self.name), byref(handle.pointer),
                 path=self.name)
            size: int = library().uckpt_file_size(handle.pointer)
        return size

    def _own_handle(self) -> Handle:
        """The handle of this process, of a file of the same size."""
        if not self._handle.is_own() and not self._handle.closed:
            with _reopening:
                if not self._handle.is_own():
                    handle = Handle(self, "uckpt_file_close", self._source.handle)
                    if in_thread(lambda: self._open(handle)) != self.size:
                        raise error(errno.ESTALE, f"{self.name}: has changed since it was opened")
                    self._handle = handle
        return self._handle

    def __reduce__(self) -> Tuple[Any, ...]:
        return _reopen_file, (self._source, self.name, self._pos)

    def close(self) -> None:
        if "_handle" in self.__dict__:
            self._handle.close()
        super().close()

    # io.RawIOBase's destructor would call close(), which the handle does not need.
    __del__ = staticmethod(int)  # type: ignore[assignment]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._pos

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._pos, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._pos = base + offset
        return self._pos

    def readinto(self, buffer: Any) -> int:
        octets = memoryview(buffer).cast("B")
        n = min(len(octets), max(self.size - self._pos, 0))
        if self._source.remote:  # an interrupted read may still be running
            octets[:n] = self.pread(n, self._pos)
        elif n:
            memory = (ctypes.c_char * n).from_buffer(octets)
            self.read_at(ctypes.addressof(memory), n, self._pos, memory)
        self._pos += n
        return n

    def read(self, size: int = -1) -> bytes:
        data = self.pread(self.size if size is None or size < 0 else size, self._pos)
        self._pos += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes at `offset`, fewer only at the end of the file."""
        n = min(size, max(self.size - offset, 0))
        data: bytes = _new_bytes(None, n)
        address = ctypes.cast(ctypes.c_char_p(data), c_void_p).value or 0
        if n >= _HUGE_BYTES:
            start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
            _madvise(start, address + n - start, mmap.MADV_HUGEPAGE)
        self.read_at(address, n, offset, data)
        return data

    def read_at(self, address: int, size: int, offset: int, memory: Any) -> None:
        """Fill the memory at an address, which belongs to `memory`, with exactly `size` bytes.
        After an exception of a signal's handler, a server's answer may still arrive: then the
        memory must have no other use."""
        given_up: List[bool] = []
        try:
            if self._source.remote:
                in_thread(lambda: self._read_at(address, size, offset, memory, given_up))
            else:
                self._read_at(address, size, offset, memory, given_up)
        except BaseException:
            given_up.append(True)
            raise

    def _read_at(self, address: int, size: int, offset: int, memory: Any,
                 given_up: List[bool]) -> None:
        for at in range(0, size, _PIECE_BYTES):
            if given_up:
                return
            n = min(_PIECE_BYTES, size - at)
            handle = self._own_handle()
            with handle.lock():
                got = call("uckpt_file_read", handle.get(), address + at, n, offset + at,
                           path=self.name)
            if got != n:
                raise error(errno.EIO, f"{self.name}: ends before byte {offset + at + n}")

    def tensors(self) -> List[Dict[str, Any]]:
        """Describe the tensors of a file of weights or of a parameter: "name", "dtype" as
        torch names it, "shape", "offset" in the file, and length in "bytes"."""
        return in_thread(self._tensors)

    def _tensors(self) -> List[Dict[str, Any]]:
        pieces: List[bytes] = []
        put = PIECE(lambda arg, text, n: pieces.append(text[:n]))
        handle = self._own_handle()
        with handle.lock():
            call("uckpt_file_tensors", handle.get(), put, None, path=self.name)
        tensors: List[Dict[str, Any]] = json.loads(b"".join(pieces))
        return tensors


def _reopen_file(source: Source, path: str, pos: int) -> File:
    file = source.open(path)
    file.seek(pos)
    return file


# Allocates bytes without initialising them.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [c_void_p, ctypes.c_ssize_t]

# Faults on pages of 4 KiB would take longer than the read.
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [c_void_p, ctypes.c_size_t, ctypes.c_int]
