# SPDX-License-Identifier: Apache-2.0
"""libuckpt by ctypes: the functions and structures of <uckpt.h>, and errors.

ctypes releases the GIL while a function of the library runs.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import logging
import os
from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p,
                    c_double, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64,
                    c_void_p)
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Type, Union

Path = Union[str, "os.PathLike[str]"]
Paths = Union[Path, Sequence[Path]]

log = logging.getLogger("ucfs")


class Error(OSError):
    """The library or the program ucfs failed. The text names the file and the cause.
    If Python has a class for the errno, such as FileNotFoundError, the error is an
    instance of that class, too."""


_kinds: Dict[type, Type[Error]] = {OSError: Error}


def error(number: int, text: str) -> Error:
    builtin = type(OSError(number, text))
    if builtin not in _kinds:
        _kinds[builtin] = type("Error", (Error, builtin), {
            "__module__": Error.__module__,
            "__reduce__": lambda self: (error, (self.errno, self.strerror)),
        })
    return _kinds[builtin](number, text)


class OptionError(Error, ValueError):
    """An unknown option, or an option with a wrong value."""

    def __reduce__(self) -> Any:
        return OptionError, (self.errno, self.strerror)


class ErrorText(Structure):
    _fields_ = [("text", c_char * 512)]


class Attr(Structure):
    _fields_ = [("node", c_uint64), ("size", c_uint64), ("blocks", c_uint64),
                ("atime_ns", c_int64), ("mtime_ns", c_int64), ("ctime_ns", c_int64),
                ("mode", c_uint32), ("nlink", c_uint32), ("uid", c_uint32),
                ("gid", c_uint32), ("blksize", c_uint32), ("timeout", c_double)]


class Entry(Structure):
    _fields_ = [("node", c_uint64), ("type", c_uint32), ("cheap", c_uint32),
                ("name", c_char * 256)]


class Done(Structure):
    _fields_ = [("files", c_uint64), ("bytes", c_uint64), ("packed", c_uint64)]


TEXT = CFUNCTYPE(None, c_void_p, c_char_p)
PIECE = CFUNCTYPE(None, c_void_p, POINTER(c_char), c_size_t)
PROGRESS = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class Calls(Structure):
    _fields_ = [("arg", c_void_p), ("warning", TEXT), ("note", TEXT),
                ("progress", PROGRESS), ("step", c_void_p), ("report", PIECE),
                ("errors", c_void_p), ("stats", c_void_p)]


_PATHS = [POINTER(c_char_p), c_size_t]

# Types of the result and of the arguments. Functions of `_FALLIBLE` take an uckpt_error
# as one more argument.
_PLAIN: Dict[str, List[Any]] = {
    "uckpt_version": [c_char_p],
    "uckpt_option_name": [c_char_p, c_size_t],
    "uckpt_new": [c_void_p],
    "uckpt_free": [None, c_void_p],
    "uckpt_set_calls": [None, c_void_p, POINTER(Calls)],
    "uckpt_stop": [None, c_void_p],
    "uckpt_is_view": [c_bool, c_void_p],
    "uckpt_source_root": [c_char_p, c_void_p, c_size_t],
    "uckpt_dir_close": [None, c_void_p],
    "uckpt_file_close": [None, c_void_p],
    "uckpt_file_size": [c_uint64, c_void_p],
}
_FALLIBLE: Dict[str, List[Any]] = {
    "uckpt_set": [c_int, c_void_p, c_char_p],
    "uckpt_open": [c_int, c_void_p, *_PATHS],
    "uckpt_find": [c_int, c_void_p, c_char_p, POINTER(c_uint64)],
    "uckpt_stat": [c_int, c_void_p, c_uint64, POINTER(Attr)],
    "uckpt_dir_open": [c_int, c_void_p, c_uint64, POINTER(c_void_p)],
    "uckpt_dir_next": [c_int, c_void_p, POINTER(c_uint64), POINTER(Entry)],
    "uckpt_file_open": [c_int, c_void_p, c_uint64, POINTER(c_void_p)],
    "uckpt_file_read": [c_int64, c_void_p, c_void_p, c_size_t, c_uint64],
    "uckpt_file_tensors": [c_int, c_void_p, PIECE, c_void_p],
    "uckpt_info": [c_int, c_void_p, *_PATHS, c_uint],
    "uckpt_check": [c_int, c_void_p, *_PATHS, c_uint],
    "uckpt_diff": [c_int, c_void_p, c_char_p, c_char_p, c_uint],
    "uckpt_convert": [c_int, c_void_p, *_PATHS, c_char_p, POINTER(Done)],
}

JSON, QUICK, DATA, STRICT = 1, 2, 4, 8
ROOT = 1

_NAME = "libuckpt.so.0"


@functools.lru_cache(maxsize=None)
def library() -> CDLL:
    """The library: $UCFS_LIBRARY, the one in the wheel, or the system's."""
    beside = os.path.join(os.path.dirname(__file__), "lib", _NAME)
    path = os.environ.get("UCFS_LIBRARY") or (beside if os.path.exists(beside) else _NAME)
    try:
        lib = CDLL(path)
        for name, (result, *arguments) in _PLAIN.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        for name, (result, *arguments) in _FALLIBLE.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments + [POINTER(ErrorText)]
    except (OSError, AttributeError) as e:
        raise error(errno.ENOENT, f"{e}: install ucfs, or set UCFS_LIBRARY to {_NAME}") from None
    return lib


def version() -> str:
    """The version of the library, such as "0.1.0"."""
    return str(library().uckpt_version(), "ascii")


def call(name: str, *args: Any, path: str = "") -> int:
    """Call a function that takes an uckpt_error, and raise the error. `path` is used if the
    error has no text."""
    said = ErrorText()
    result: int = getattr(library(), name)(*args, byref(said))
    if result < 0:
        text = said.text.decode("utf-8", "replace")
        if not text:
            text = os.strerror(-result) + (f": {path}" if path else "")
        raise error(-result, text)
    return result


def path_list(paths: Paths) -> List[str]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [os.fsdecode(paths)]
    return [os.path.expanduser(os.fspath(p)) for p in paths]


def path_array(paths: Sequence[str]) -> Any:
    return (c_char_p * len(paths))(*map(os.fsencode, paths))


def option_texts(options: Mapping[str, Any]) -> Iterator[str]:
    """`crc="zero"` as "crc=zero", `replace=True` as "replace", `ranks=[2, 4]` as
    "ranks=2" and "ranks=4"."""
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if "\0" in str(one):
                raise OptionError(errno.EINVAL, f"{name}={one!r}: has a NUL")
            if one is True:
                yield name
            elif one is not None and one is not False:
                yield f"{name}={os.fspath(one) if isinstance(one, os.PathLike) else one}"


_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                 "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")


def with_certificates(paths: Sequence[str], options: Mapping[str, Any]) -> Dict[str, Any]:
    """The options, with the certificates of certifi where the system has none."""
    remote = any(p.startswith(("https://", "s3://")) for p in paths)
    if remote and not any(map(os.path.exists, _CERTIFICATES)):
        try:
            import certifi
            return {"ca_file": certifi.where(), **options}
        except ImportError:
            pass
    return dict(options)
