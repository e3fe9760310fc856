# SPDX-License-Identifier: Apache-2.0
"""The commands of ucckpt(1) as functions."""

from __future__ import annotations

import json
import os
import re
import threading
from ctypes import byref
from typing import Any, Callable, Dict, List, Mapping, Optional

from ._handles import Handle, in_thread, new_context
from ._library import (DATA, JSON, QUICK, STRICT, Done, Path, Paths, call, log, path_array,
                       path_list, with_certificates)

Progress = Callable[[int, int], Any]


def info(source: Paths, quick: bool = False, **options: Any) -> Dict[str, Any]:
    """Describe a checkpoint, or the newest one of a run, with the keys of `ucckpt info --json`.
    `quick` reads only the files of one rank, and does not find problems in others."""
    return _report("uckpt_info", [source], JSON | (quick and QUICK), options)


def check(source: Paths, data: bool = False, progress: Optional[Progress] = None,
          **options: Any) -> Dict[str, Any]:
    """Check that a checkpoint is whole: then "problems" is empty. The keys are those of
    `ucckpt check --json`. `data` reads all tensors, too."""
    return _report("uckpt_check", [source], JSON | (data and DATA), options, progress)


def diff(a: Path, b: Path, strict: bool = False, progress: Optional[Progress] = None,
         **options: Any) -> Dict[str, Any]:
    """Compare two checkpoints of any kind. The keys are those of `ucckpt diff --json`:
    "equal" is the result. `strict` counts different types as differences, too; `rtol=`
    and `atol=` set a tolerance."""
    return _report("uckpt_diff", [a, b], JSON | (strict and STRICT), options, progress)


_RECUT = re.compile(r"dp(\d+)(?:_z([123]))?")


def materialize(source: Paths, view: str, dest: Path,
                progress: Optional[Progress] = None, **options: Any) -> Dict[str, int]:
    """Write a view of a tag, or of the newest tag of a run, to the new directory `dest`, which
    appears whole or not at all. `view` is "universal", "hf", "fp32", "dcp", "dp8" or "dp8_z1".
    Besides the options of `open` it takes those of `ucckpt convert`: `readers`, `jobs`, `part` and
    `no_strict`.

    Returns the number of "files" and "bytes" written. `progress` is called with the bytes done
    and the total. If it returns True or raises, the work ends, and InterruptedError or its
    exception is raised. Complete files are then kept beside `dest`, as after a signal, and the
    same call continues with them; a warning says so."""
    found = _RECUT.fullmatch(view)
    ranks, stage = found.groups() if found else (None, None)
    options = {**options, "view": "zero" if found else view, "ranks": ranks}
    if stage:
        options["stage"] = stage
    paths, done = path_list(source), Done()
    try:
        _run("uckpt_convert", [path_array(paths), len(paths), os.fsencode(dest), byref(done)],
             with_certificates(paths, options), progress)
    except BaseException:
        if done.files:
            log.warning("%s: complete files are kept beside it (%d), and the same call goes on "
                        "with them", os.fspath(dest), done.files)
        raise
    return {"files": done.files, "bytes": done.bytes}


def _report(name: str, sources: List[Paths], flags: int, options: Mapping[str, Any],
            progress: Optional[Progress] = None) -> Dict[str, Any]:
    """Return the report of a command about one source, or about two single paths."""
    lists = [path_list(s) for s in sources]
    arguments: List[Any] = [os.fsencode(p) for paths in lists for p in paths]
    if len(lists) == 1:
        arguments = [path_array(lists[0]), len(lists[0])]
    pieces: List[bytes] = []
    _run(name, [*arguments, flags], with_certificates(sum(lists, []), options), progress,
         pieces.append)
    report: Dict[str, Any] = json.loads(b"".join(pieces))
    return report


def _run(name: str, arguments: List[Any], options: Mapping[str, Any],
         progress: Optional[Progress],
         report: Optional[Callable[[bytes], None]] = None) -> None:
    """Run a command. A signal, or an exception of a callback, stops it, and is raised once it
    has ended."""
    stop = threading.Event()
    lock = threading.Lock()
    latest = 0
    raised: List[BaseException] = []
    contexts: List[Handle] = []

    def ask(done: int, total: int) -> int:
        nonlocal latest
        with lock:  # the library's threads report in no order
            if not progress or stop.is_set() or done < latest:
                return stop.is_set()
            latest = done
            try:
                if progress(done, total):
                    stop.set()
            except BaseException as e:  # pylint: disable=W0718
                raised.append(e)
                stop.set()
            return stop.is_set()

    def work() -> None:
        context = new_context(options, None, ask, report)
        contexts.append(context)
        try:
            with context.lock():
                call(name, context.get(), *arguments)
        except BaseException:
            if raised:
                raise raised[0] from None
            raise
        finally:
            context.close_here()

    def end() -> None:
        stop.set()
        for context in contexts:
            context.close_later()

    in_thread(work, end)
