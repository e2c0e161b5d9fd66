"""Detect that a memory-mapped file was overwritten: this would change the tensors that are mapped from it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import BinaryIO, NoReturn

import torch

from pipeline.aten.types import Leaf
from pipeline.errors import ArtifactError, ExecutionError, PipelineError, error_text
from pipeline.frozen import FrozenDict


class OpenedFile:
    """A memory-mapped file that stays open: replacing it by a rename is harmless, but writing to it is an error.

    verify: returns whether the file still has the loaded bytes; called if its modification time has changed.
    """

    def __init__(self, file: BinaryIO, name: str, verify: Callable[[], bool]) -> None:
        self.file, self.name, self.verify = file, name, verify
        self.lock = threading.Lock()
        weakref.finalize(self, file.close)  # else Python warns of a file that was not closed
        self.state = self._size_and_time()

    def check(self) -> None:
        """Raise an error if the file's bytes have changed since it was loaded."""
        if (found := self._size_and_time()) == self.state:
            return
        with self.lock:
            if found[0] == self.state[0] and self.verify():
                self.state = found
                return
        raise ArtifactError(
            f"{self.name} was overwritten while this process uses it",
            "load it again; write new files under another name and rename them into place (os.replace, mv)",
        )

    def _size_and_time(self) -> tuple[int, int]:
        """Return the file's current size in bytes, and its modification time in nanoseconds."""
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns


def check_files(parameters: object) -> None:
    """Raise an error if a file from which a program's parameters are mapped was overwritten."""
    for file in parameters.files if isinstance(parameters, FileWeights) else ():
        file.check()


def source_file_name(parameters: object) -> str:
    """Return the name of the file that a program's parameters were loaded from; empty if they are not from a file."""
    return parameters.files[0].name if isinstance(parameters, FileWeights) and parameters.files else ""


def stated_call_bytes(parameters: object) -> int:
    """Return the limit in bytes for the memory of a call, from the file that a program was loaded from; 0 if none.
    ``parameters``: the program's parameters, `FileWeights` if it was loaded from a file."""
    return parameters.call_bytes if isinstance(parameters, FileWeights) else 0


def raise_call_error(file_name: str, error: Exception, reported: Exception) -> NoReturn:
    """Raise ``reported``: the ``error`` of a failed call, or an error that says more. Call it in the ``except`` clause.

    For a program from a file, an error that names the file and the node is raised instead, unless ``reported`` is an
    error of this package or of exhausted memory. This frame drops its references, so the call's tensors are freed.
    """
    failed = reported
    if file_name and not isinstance(reported, (PipelineError, MemoryError, torch.OutOfMemoryError)):
        where = "".join(f", {note}" for note in getattr(reported, "__notes__", ()))
        hint = "pass inputs like those that it was compiled for; if that fails, the file may be damaged: save it again"
        failed = ExecutionError(f"{file_name} failed in a call{where}: {error_text(reported)}", hint)
    try:
        if failed is not error:
            raise failed from error
        raise
    finally:
        del failed, error, reported


class FileWeights(FrozenDict[str, Leaf]):
    """Memory-mapped tensors; each access by name checks that their files are unchanged. ``call_bytes``: the memory of a
    call that the file states, or 0. ``absent``: the reason if tensors have no values (meta tensors)."""

    __slots__ = ("absent", "call_bytes", "files")
    files: tuple[OpenedFile, ...]
    call_bytes: int
    absent: str

    def __init__(self, items: Leaf, files: tuple[OpenedFile, ...], call_bytes: int = 0, absent: str = "") -> None:
        super().__init__(items)
        for name, value in (("files", files), ("call_bytes", call_bytes), ("absent", absent)):
            object.__setattr__(self, name, value)

    def __getitem__(self, name: str) -> Leaf:
        check_files(self)
        return super().__getitem__(name)

    def __reduce__(self) -> tuple[object, ...]:
        return (FileWeights, (self._items, (), 0, self.absent)) if self.absent else (FrozenDict, (dict(self),))
