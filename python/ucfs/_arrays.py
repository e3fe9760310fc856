# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as mappings of tags, with parameters as arrays and weights as tensors."""

from __future__ import annotations

import difflib
import errno
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple, Union

import numpy as np

from ._handles import in_thread, in_threads
from ._library import Paths, error
from ._options import describe
from ._source import File, Source

if TYPE_CHECKING:
    from ._options import Options, Unpack

_WEIGHTS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_BLOCK_BYTES = 1 << 20  # read at once for a slice with a step
_PART_BYTES = 16 << 20  # bytes of a tensor that a thread reads at once


class _Missing(KeyError):
    """The message, with the nearest or the newest name, is made when it is shown: comparing
    thousands of names takes seconds, and `in` and get() raise this, too."""

    def __init__(self, name: object, names: Iterable[str]) -> None:
        super().__init__(name)
        self._names = names

    def __str__(self) -> str:
        known = list(self._names)
        near = difflib.get_close_matches(str(self.args[0]), known) or known[-3:][::-1]
        return f"{self.args[0]!r}: there is " + (", ".join(map(repr, near)) or "none")

    def __reduce__(self) -> Any:
        return KeyError, (str(self),)


def _numpy_type(name: str) -> Any:
    """Return numpy's type of this name, or that of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise error(errno.ENOTSUP, f"numpy has no {name}: "
                    "install torch, or ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, name))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


class Array:
    """A tensor in a checkpoint. Indexing reads it, but only those rows of the first axis
    that the index selects. `np.asarray` reads the whole tensor."""

    def __init__(self, file: File, entry: Mapping[str, Any]) -> None:
        self._file, self._name, self._offset = file, entry["name"], entry["offset"]
        self.type: str = entry["dtype"]  # as torch names it
        self.shape: Tuple[int, ...] = tuple(entry["shape"])
        self.nbytes: int = entry["bytes"]
        self._strides = entry.get("strides")  # in elements, of a view with gaps
        self._place = file.name, self._offset, self.shape  # the same for tied tensors

    def __reduce__(self) -> Tuple[Any, ...]:
        return _reopen_array, (self._file, self._name, self.type, self.shape)

    @property
    def dtype(self) -> Any:
        """numpy's type. Raises ucfs.Error for bfloat16 unless ml_dtypes is installed."""
        return _numpy_type(self.type)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __repr__(self) -> str:
        return f"<ucfs.Array {self._file.name} {self.type} {list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no len()")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if copy is False:
            raise ValueError("an array of a checkpoint has to be read")
        return np.asarray(self[...], dtype=dtype)

    def __float__(self) -> float:
        return float(self[...])

    def torch(self) -> Any:
        """Read the whole array, of any type, as a torch tensor."""
        import torch
        return _read_all([self], torch)[0]

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        first = keys[0] if keys and self.shape else None
        if self._strides:
            return _read_all([self], None)[0][key]
        if isinstance(first, slice):
            return self._rows(range(*first.indices(len(self))))[(slice(None),) + keys[1:]]
        if isinstance(first, (int, np.integer)) and not isinstance(first, (bool, np.bool_)):
            row = range(len(self))[first]
            return self._rows(range(row, row + 1))[(0,) + keys[1:]]
        return _read_all([self], None)[0][key]

    def _rows(self, rows: range) -> Any:
        """Read these rows. Rows that lie close together are read in one block."""
        if rows.step < 0:
            return self._rows(rows[::-1])[::-1]
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        row_bytes = self.nbytes // len(self) if len(self) else 0
        if not out.size:
            return out
        block = max(1, _BLOCK_BYTES // (row_bytes * rows.step))
        if rows.step == 1:
            block = len(rows)
        for i in range(0, len(rows), block):
            part = rows[i:i + block]
            span = part[-1] + 1 - part[0]
            into = (out[i:i + block] if rows.step == 1 or span == 1 else
                    np.empty((span, *self.shape[1:]), out.dtype))
            self._file.read_at(into.ctypes.data, span * row_bytes,
                               self._offset + part[0] * row_bytes, into)
            if into.base is not out:
                out[i:i + block] = into[::rows.step]
        return out


def _reopen_array(file: File, name: str, type: str, shape: Tuple[int, ...]) -> Array:
    for entry in file.tensors():
        if entry["name"] == name and "offset" in entry:
            array = Array(file, entry)
            if (array.type, array.shape) == (type, shape):
                return array
    raise error(errno.ESTALE, f"{file.name} has no tensor {name} of {type} {list(shape)} "
                "any more")


def _read_all(arrays: Sequence[Array], torch: Any) -> List[Any]:
    """Read arrays with several threads, each array into its own memory."""
    out: List[Any] = []
    parts: List[Tuple[File, int, int, int, Any]] = []
    for a in arrays:
        if torch:
            dtype = getattr(torch, a.type)
            item = torch.empty(0, dtype=dtype).element_size()
            tensor = torch.empty(a.nbytes // item, dtype=dtype)
            address = tensor.data_ptr()
        else:
            tensor = np.empty(a.nbytes // a.dtype.itemsize, a.dtype)
            address = tensor.ctypes.data
        out.append(tensor)
        parts += [(a._file, address + at, min(_PART_BYTES, a.nbytes - at), a._offset + at, tensor)
                  for at in range(0, a.nbytes, _PART_BYTES)]
    if len(parts) < 2:
        for file, *part in parts:
            file.read_at(*part)
    else:
        in_threads(lambda p: p[0].read_at(*p[1:]), parts)
    return [_arrange(a, tensor, torch) for a, tensor in zip(arrays, out)]


def _arrange(a: Array, elements: Any, torch: Any) -> Any:
    if not a._strides:
        return elements.reshape(a.shape)
    if torch:
        return elements.as_strided(a.shape, a._strides).contiguous()
    return np.lib.stride_tricks.as_strided(
        elements, a.shape, [n * elements.itemsize for n in a._strides]).copy()


def _round(tensor: Any, type: str, to: str, torch: Any) -> Any:
    if type != "float32":
        return tensor
    return tensor.to(getattr(torch, to)) if torch else tensor.astype(_numpy_type(to))


class Parameter(Mapping[str, Union[Array, int, float]]):
    """A parameter: `p.fp32` or `p["fp32"]` is the array of its master weights, and
    `p.exp_avg` that of an optimizer's state. States that the checkpoint stores as Python
    numbers are numbers."""

    def __init__(self, source: Source, directory: str, name: str) -> None:
        self._source, self._directory, self.name = source, f"{directory}/{name}", name

    def __iter__(self) -> Iterator[str]:
        return (name[:-len(".pt")] for name in self._source.list(self._directory)
                if name.endswith(".pt"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, state: str) -> Union[Array, int, float]:
        try:
            return in_thread(lambda: self._read(f"{self._directory}/{state}.pt"))
        except FileNotFoundError:
            raise _Missing(state, list(self)) from None

    def _read(self, path: str) -> Union[Array, int, float]:
        file = self._source.open(path)
        found, = file.tensors()
        return found["value"] if "value" in found else Array(file, found)

    def __getattr__(self, state: str) -> Any:
        if state.startswith("_"):
            raise AttributeError(state)
        try:
            return self[state]
        except KeyError:
            raise AttributeError(f"{self.name} has no {state}") from None

    def __repr__(self) -> str:
        states = "closed" if self._source.handle.closed else ", ".join(self)
        return f"<ucfs.Parameter {self.name}: {states}>"


class _Parameters(Mapping[str, Parameter]):
    def __init__(self, source: Source, directory: str) -> None:
        self._source, self._directory = source, directory
        self._names = dict.fromkeys(in_thread(lambda: list(_find_parameters(source, directory))))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._names:
            raise _Missing(name, self._names)
        return Parameter(self._source, self._directory, name)


def _find_parameters(source: Source, directory: str, below: str = "") -> Iterator[str]:
    """The parameters of a tree: a/b has its directory in that of a, which need not be a
    parameter."""
    for name, file in source.list(f"{directory}/{below}").items():
        if not file:
            path = below + name
            has_others = source.stat(f"{directory}/{path}").nlink != 2  # some systems always have 1
            if not has_others or any(n.endswith(".pt") for n in source.list(f"{directory}/{path}")):
                yield path
            if has_others:
                yield from _find_parameters(source, directory, path + "/")


class Tag:
    """A checkpoint of one step, or a directory of Hugging Face weights."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint, self.name = checkpoint, name

    def __reduce__(self) -> Tuple[Any, ...]:
        return _reopen_tag, (self._checkpoint._source, self.name)

    def __repr__(self) -> str:
        return f"<ucfs.Tag {self.name}>"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of the universal tree, by name."""
        source, directory = self._checkpoint._view(self.name, "universal")
        return _Parameters(source, f"{directory}/zero")

    def state_dict(self, dtype: str = "fp32") -> Dict[str, Any]:
        """Read all weights and buffers, under all their names, as torch tensors, or as
        numpy arrays if torch is not installed. Floating-point numbers are rounded (to
        nearest even) to `dtype`: "fp32", "bf16" or "fp16". Tied tensors share memory."""
        if dtype not in _WEIGHTS:
            raise ValueError(f"dtype {dtype!r}: expected one of {', '.join(_WEIGHTS)}")
        names = self._weights("fp32", ".bin")
        found = names if dtype == "fp32" else self._weights("hf", ".safetensors",
                                                            hf_dtype=dtype)
        # model.safetensors has only one of the names of tied tensors.
        one: Dict[Any, str] = {}
        for name, a in names.items():
            if name in found:
                one.setdefault(a._place, name)
        for name in one.values():
            kind = found[name].type
            if "float" in kind and kind != _WEIGHTS[dtype]:
                raise error(errno.EEXIST, f"{found[name]}: a file on disk, which is shown "
                            f"instead of the view, is not of {dtype}")
        torch = _torch()
        tensors = dict(zip(one, _read_all([found[n] for n in one.values()], torch)))
        # The view of a LoRA run has only the adapter, under other names.
        rest = {a._place: a for a in names.values() if a._place not in one}
        for a, tensor in zip(rest.values(), _read_all(list(rest.values()), torch)):
            tensors[a._place] = _round(tensor, a.type, _WEIGHTS[dtype], torch)
        return {name: tensors[a._place] for name, a in names.items()}

    def _weights(self, view: str, suffix: str, **options: Any) -> Dict[str, Array]:
        source, directory = self._checkpoint._view(self.name, view, **options)
        arrays: Dict[str, Array] = {}
        for name in source.list(directory):
            if name.endswith(suffix):
                file = source.open(f"{directory}/{name}")
                arrays.update((t["name"], Array(file, t)) for t in file.tensors())
        return arrays


class Checkpoint(Mapping[str, Tag]):
    """An open source: a mapping of its tags, oldest first."""

    def __init__(self, source: Source) -> None:
        self._options = source.options
        self._lock = threading.RLock()  # a signal's handler may close it
        self._source = source
        self._sources: Dict[Any, Source] = {(): source}

    def __reduce__(self) -> Tuple[Any, ...]:
        return _open, (self._source.absolute, self._options)

    def close(self) -> None:
        """Close the source and its files, after waiting for threads that read."""
        with self._lock:
            for source in self._sources.values():
                source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    @property
    def tags(self) -> List[str]:
        """The names of the tags that exist now, oldest first."""
        if self._source.is_view:
            return [os.path.basename(self._source.root)]
        return sorted(_find_tags(self._source, "", 2), key=_by_number)

    @property
    def latest(self) -> str:
        """The tag that the run's `latest` names, or the newest if there is no `latest`."""
        for pointer, view in ("latest_universal", "_universal"), ("latest", ""):
            try:
                with self._source.open(pointer) as f:
                    text = f.read().decode().strip()
                return text[:len(text) - len(view)]
            except FileNotFoundError:
                pass
        return self[-1].name

    def __iter__(self) -> Iterator[str]:
        return iter(self.tags)

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, tag: Union[str, int]) -> Tag:
        """The tag of this name, or by number: `ckpt[-1]` has the highest step."""
        tags = self.tags
        if isinstance(tag, int):
            if not tags:
                raise error(errno.ENOENT, f"{', '.join(self._source.paths)}: there is no tag")
            return Tag(self, tags[tag])
        if tag not in tags:
            raise _Missing(tag, tags)
        return Tag(self, tag)

    def __repr__(self) -> str:
        of = ", ".join(self._source.paths)
        if self._source.handle.closed:
            return f"<ucfs.Checkpoint {of}, closed>"
        tags = self.tags
        return f"<ucfs.Checkpoint {of}: {len(tags)} tags{', newest ' + tags[-1] if tags else ''}>"

    def _view(self, tag: str, view: str, **options: Any) -> Tuple[Source, str]:
        """Return a source with these options, and the view's directory in it."""
        if self._source.is_view and view != "universal":
            options["view"] = view
        key = tuple(sorted(options.items()))
        with self._lock:
            if key not in self._sources:
                self._sources[()].stat("")  # raises if closed
                self._sources[key] = Source(self._source.absolute, {**self._options, **options})
            return self._sources[key], "" if self._source.is_view else f"{tag}_{view}"


def _find_tags(source: Source, directory: str, depth: int) -> List[str]:
    """Return the paths of the tags in a directory, or, if it has none, in those below:
    trainers save checkpoint-4/global_step4. Views that a tag cannot have are not listed."""
    entries = source.list(directory)
    tags = [n for n, file in entries.items() if not file and
            (n + "_universal" in entries or {n + "_hf", n + "_fp32"} <= entries.keys())]
    if tags or not depth:
        return [directory + n for n in tags]
    return [tag for n, file in entries.items() if not file
            for tag in _find_tags(source, f"{directory}{n}/", depth - 1)]


def _by_number(tag: str) -> List[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part)
            for part in re.split(r"(\d+)", tag)]


@describe
def open(source: Paths, **options: Unpack[Options]) -> Checkpoint:  # pylint: disable=W0622
    """Open a source without mounting it. Arrays have the shapes of the parameters, unless
    `stage="native"` asks for the converter's flat tensors of ZeRO-3. Raises ucfs.Error, which
    is also FileNotFoundError or ValueError where these tell more."""
    return _open(source, {"stage": "any", **options})


def _open(paths: Paths, options: Dict[str, Any]) -> Checkpoint:
    return Checkpoint(Source(paths, options))


def _reopen_tag(source: Source, name: str) -> Tag:
    return Tag(Checkpoint(source), name)
