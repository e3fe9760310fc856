# SPDX-License-Identifier: Apache-2.0
"""Pointers of the library, which are freed even if signals interrupt their users.

Python runs the handlers of signals in the main thread, between any two of its steps, and
exceptions of a handler, such as KeyboardInterrupt, are raised there. Work that must not be
interrupted is therefore done by other threads, and the main thread holds a lock, which C code
acquires and releases, while it uses a pointer. Nothing is freed by a destructor written in
Python, because Python drops exceptions raised in one."""

from __future__ import annotations

import _thread
import atexit
import os
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p
from typing import (Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, TypeVar)

from ._library import (PIECE, PROGRESS, TEXT, Calls, Error, OptionError, call, library, log,
                       option_texts)

T = TypeVar("T")
R = TypeVar("R")


def in_thread(work: Callable[[], T], stop: Optional[Callable[[], None]] = None) -> T:
    """Return what `work` returns. The main thread waits while another does the work. An
    exception of a signal's handler ends the wait: without `stop` at once, and the result of
    the work is dropped; or else `stop` is called, and the work still ends first."""
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    done = _thread.allocate_lock()
    todo = [work]
    results: List[Tuple[Any, Optional[BaseException]]] = []

    def run() -> None:
        try:
            results.append((todo.pop()(), None))
        except BaseException as e:  # pylint: disable=W0718
            results.append((None, e))
        finally:
            done.release()

    done.acquire()
    try:
        _thread.start_new_thread(run, ())
        done.acquire()
    except BaseException:
        try:
            todo.pop()  # not begun: nothing to wait for
        except IndexError:
            if stop and not results:
                stop()
                done.acquire()
        raise
    result, raised = results.pop()
    if raised:
        try:
            raise raised
        finally:
            del raised
    return result  # type: ignore[no-any-return]


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> List[R]:
    """Return the results of `work` for all items, computed by several threads."""
    given_up = threading.Event()

    def run() -> List[Any]:
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda x: None if given_up.is_set() else work(x), items))

    try:
        return in_thread(run)
    except BaseException:
        given_up.set()
        raise


class Handle:
    """A pointer of the library that threads may share:

        with handle.lock():
            call("uckpt_stat", handle.get(), ...)

    `pointer` is to be filled in by the library. `close` waits until no thread uses it, then
    frees it; later uses raise ValueError. Closing a parent closes its children, and frees it
    after them. A handle is closed, too, when `owner` is gone.
    """

    def __init__(self, owner: Any, free: str, parent: Optional[Handle] = None,
                 stop: str = "", keep: Any = None) -> None:
        self.pointer = c_void_p()
        self._free, self._stop = free, stop
        self._keep = keep  # callbacks of the library
        self._children: Dict[int, Handle] = {}
        self._siblings = parent._children if parent else _contexts
        self._users: Dict[int, Any] = {}  # a lock of each thread
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self.closed = False
        self._owner = _Owner(owner, _dropped.put) if owner is not None else None
        if self._owner:
            self._owner.handle = self
        _start_closing()
        self._siblings[id(self)] = self  # last: from now on it will be closed, even after an interrupt

    def lock(self) -> Any:
        """Return this thread's lock, which is held while it uses the pointer."""
        me = threading.get_ident()
        return self._users.get(me) or self._users.setdefault(me, threading.RLock())

    def is_own(self) -> bool:
        return self._pid == os.getpid()

    def get(self) -> c_void_p:
        if not self.is_own():
            raise ValueError("opened before fork(): open it in each process")
        if self.closed:
            raise ValueError("the checkpoint or file is closed")
        return self.pointer

    def close(self) -> None:
        if not self.is_own():
            return
        self.closed = True
        if self._is_used_here():  # a signal's handler has interrupted this thread's use
            self.close_later()
        else:
            in_thread(self.close_here)

    def _is_used_here(self) -> bool:
        own = self._users.get(threading.get_ident())
        return bool(own and own._is_owned()) or any(
            child._is_used_here() for child in list(self._children.values()))

    def close_later(self) -> None:
        self.closed = True
        _dropped.put(self)

    def close_here(self) -> None:
        """Close in this thread, which must not be interrupted."""
        self.closed = True
        with self._closing:
            if self._stop and self.pointer:
                getattr(library(), self._stop)(self.pointer)
            for user in list(self._users.values()):
                with user:
                    pass
            for child in list(self._children.values()):
                child.close_here()
            if self.pointer:
                getattr(library(), self._free)(self.pointer)
                self.pointer.value = None
            self._siblings.pop(id(self), None)
            self._owner = None


class _Owner(weakref.ref):  # type: ignore[type-arg]
    handle: Optional[Handle] = None


# Contexts that are open: the library's threads must not outlive the interpreter that they call.
_contexts: Dict[int, Handle] = {}
_dropped: queue.SimpleQueue[Any] = queue.SimpleQueue()  # owners, or handles, to be closed
_closer = 0  # the process with a thread that closes them


def _close_dropped() -> None:
    while True:
        dropped = _dropped.get()
        handle = dropped.handle if isinstance(dropped, _Owner) else dropped
        if handle:
            handle.close_here()
        del dropped, handle


def _start_closing() -> None:
    global _closer
    if _closer != os.getpid():
        _thread.start_new_thread(_close_dropped, ())
        _closer = os.getpid()


def _forget() -> None:
    """A forked process has none of its parent's handles."""
    global _dropped
    _contexts.clear()
    _dropped = queue.SimpleQueue()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _close_contexts() -> None:
    for handle in list(_contexts.values()):
        handle.close_here()


_warning = TEXT(lambda arg, text: log.warning("%s", text.decode("utf-8", "replace")))
_note = TEXT(lambda arg, text: log.info("%s", text.decode("utf-8", "replace")))


def new_context(options: Mapping[str, Any], owner: Any = None,
                progress: Optional[Callable[[int, int], int]] = None,
                report: Optional[Callable[[bytes], None]] = None) -> Handle:
    """A `struct uckpt` with these options. The callables must not raise."""
    calls = Calls(None, _warning, _note)
    if progress:
        tell = progress
        calls.progress = PROGRESS(lambda arg, done, total: tell(done, total))
    if report:
        put = report
        calls.report = PIECE(lambda arg, text, n: put(text[:n]))
    handle = Handle(owner, "uckpt_free", stop="uckpt_stop", keep=calls)
    try:
        handle.pointer.value = library().uckpt_new()
        if not handle.pointer:
            raise MemoryError("uckpt_new")
        library().uckpt_set_calls(handle.pointer, byref(calls))
        for text in option_texts(options):
            try:
                call("uckpt_set", handle.pointer, os.fsencode(text))
            except Error as e:
                raise OptionError(e.errno, e.strerror) from None
    except BaseException:
        handle.close_later()
        raise
    return handle
