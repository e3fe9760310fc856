# SPDX-License-Identifier: Apache-2.0
"""ucfs:// for fsspec: what a mount would show, read-only.

    fsspec.filesystem("ucfs", source="/data/run", ranks=[8]).ls("global_step10_dp8")
    fsspec.open("ucfs:///data/run/global_step10_hf/model.safetensors")

With `source`, paths are relative to it. Without, a path begins with that of its source:
the longest prefix that exists on disk, or a directory above if that is no source that
has the path.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from typing import Any, Dict, List, Optional, Tuple

from fsspec.spec import AbstractFileSystem

from ._handles import in_threads
from ._library import Attr, Paths, error
from ._source import File, Source

_BUFFER_BYTES = 256 << 10
_PREFIXES = 3  # a file, its tag, its run


class UcfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The file system. Options are those of ucfs(1)."""

    protocol = "ucfs"
    root_marker = ""

    def __init__(self, source: Optional[Paths] = None, **options: Any) -> None:
        super().__init__(source=source, **options)
        options.pop("skip_instance_cache", None)
        self._options = options
        self._sources: Dict[str, Source] = {}
        self._lock = threading.Lock()
        self._source = None if source is None else Source(source, options)

    def close(self) -> None:
        """Close the sources, after waiting for threads that read."""
        for source in [self._source, *self._sources.values()]:
            if source:
                source.close()
        self._sources.clear()

    def _open_source(self, path: str) -> Source:
        with self._lock:
            if path not in self._sources:
                self._sources[path] = Source(path, self._options)
            return self._sources[path]

    def _locate(self, path: str) -> Tuple[Source, str, Attr]:
        """Return the source of a path, the path below it, and its attributes."""
        path = self._strip_protocol(path)
        if self._source:
            return self._source, path, self._source.stat(path)
        path = prefix = os.path.abspath(path)
        while not os.path.exists(prefix):
            prefix = os.path.dirname(prefix)
        failure: Optional[OSError] = None
        for _ in range(_PREFIXES):
            source: Optional[Source] = None
            try:
                source = self._open_source(prefix)
                below = os.path.relpath(path, prefix) if path != prefix else ""
                return source, below, source.stat(below)
            except OSError as e:
                failure = failure or e
            if source and not source.is_view:  # a run shows everything below it
                break
            prefix = os.path.dirname(prefix)
        assert failure
        raise failure

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        attr = self._locate(path)[2]
        return _info(self._strip_protocol(path), None if stat.S_ISDIR(attr.mode) else attr)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> List[Any]:
        source, below, attr = self._locate(path)
        path = self._strip_protocol(path)
        found = [_info(path, attr)]
        if stat.S_ISDIR(attr.mode):
            found = [_info(f"{path}/{name}" if path else name, file)
                     for name, file in source.list(below).items()]
        return found if detail else [f["name"] for f in found]

    def _file(self, path: str) -> File:
        source, below, attr = self._locate(path)
        if stat.S_ISDIR(attr.mode):
            raise error(errno.EISDIR, f"{path}: is a directory")
        return source.open(below)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> io.BufferedReader:
        if mode != "rb":
            raise error(errno.EROFS, f"{path}: ucfs:// is read-only")
        return _Reader(self._file(path), _BUFFER_BYTES)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None,
                 **kwargs: Any) -> bytes:
        with self._file(path) as file:
            first, last, _ = slice(start, end).indices(file.size)
            return file.pread(max(last - first, 0), first)

    def cat_ranges(self, paths: List[str], starts: Any, ends: Any,
                   max_gap: Optional[int] = None, on_error: str = "return",
                   **kwargs: Any) -> List[Any]:
        """Read ranges with several threads. By default an error takes the place of the
        bytes; with on_error="raise" it is raised."""
        n = len(paths)
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * n
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * n

        def read(wanted: Tuple[str, Optional[int], Optional[int]]) -> Any:
            try:
                return self.cat_file(*wanted)
            except OSError as e:
                if on_error == "raise":
                    raise
                return e

        return in_threads(read, zip(paths, starts, ends))


class _Reader(io.BufferedReader):
    def __reduce__(self) -> Tuple[Any, ...]:
        return _reopen, (self.raw, self.tell())

    @property
    def size(self) -> int:
        return self.raw.size  # type: ignore[attr-defined, no-any-return]


def _reopen(file: File, pos: int) -> _Reader:
    reader = _Reader(file, _BUFFER_BYTES)
    reader.seek(pos)
    return reader


def _info(path: str, file: Optional[Attr]) -> Dict[str, Any]:
    if not file or stat.S_ISDIR(file.mode):
        return {"name": path, "size": 0, "type": "directory"}
    if stat.S_ISLNK(file.mode):  # its target does not exist
        return {"name": path, "size": 0, "type": "link"}
    return {"name": path, "size": file.size, "type": "file", "mtime": file.mtime_ns / 1e9,
            "mode": file.mode, "ino": file.node}
