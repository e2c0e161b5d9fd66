"""Notice that a memory-mapped file was overwritten: what a process maps changes with it, and may be gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import BinaryIO

import torch

from pipeline.aten.types import Leaf
from pipeline.errors import ArtifactError, ExecutionError, PipelineError, worded
from pipeline.frozen import FrozenDict


class OpenedFile:
    """A file that is memory-mapped. A file that takes its name by a rename leaves it as it is; one that is written over
    it does not.

    file: stays open here. verify: whether the file, which was written to, has the same bytes all the same.
    """

    def __init__(self, file: BinaryIO, name: str, verify: Callable[[], bool]) -> None:
        self.file, self.name, self.verify = file, name, verify
        self.lock = threading.Lock()
        self.state = self._state()

    def check(self) -> None:
        """Raise an error if the file does not have the bytes any more that were loaded."""
        if (found := self._state()) == self.state:
            return
        with self.lock:
            if found[0] == self.state[0] and self.verify():
                self.state = found
                return
        raise ArtifactError(
            f"{self.name} was overwritten while this process uses it",
            "load it again; write a new file under another name, and put it in place in one step: os.replace, mv",
        )

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns


def check_files(parameters: object) -> None:
    """Raise an error if a file was overwritten that a program maps, whose parameters these are."""
    for file in parameters.files if isinstance(parameters, FileWeights) else ():
        file.check()


def file_of(parameters: object) -> str:
    """The file that a program was loaded from, whose parameters these are; empty if there is none."""
    return parameters.files[0].name if isinstance(parameters, FileWeights) and parameters.files else ""


def call_bytes_of(parameters: object) -> int:
    """How much memory a call takes, as the file says it that a program was loaded from; 0 if nothing is said."""
    return parameters.call_bytes if isinstance(parameters, FileWeights) else 0


def failure_of(file: str, error: Exception) -> Exception:
    """The error of a call that failed in an operator: for a program from a file one that names the file and the node,
    else the error itself. A GPU that is full says so in torch's own error."""
    if not file or isinstance(error, (PipelineError, MemoryError, torch.OutOfMemoryError)):
        return error
    where = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    hint = "call it with inputs as those that it was compiled for; a file that was changed may fail so as well"
    return ExecutionError(f"{file}{where}: {worded(error)}", hint)


class FileWeights(FrozenDict[str, Leaf]):
    """Tensors that are memory-mapped; a file is checked whenever one is read by its name. ``call_bytes``: how much
    memory a call of their program takes, as the file says it; 0 if it does not."""

    __slots__ = ("call_bytes", "files")
    files: tuple[OpenedFile, ...]
    call_bytes: int

    def __init__(self, items: Leaf, files: tuple[OpenedFile, ...], call_bytes: int = 0) -> None:
        super().__init__(items)
        object.__setattr__(self, "files", files)
        object.__setattr__(self, "call_bytes", call_bytes)

    def __getitem__(self, name: str) -> Leaf:
        check_files(self)
        return super().__getitem__(name)

    def __reduce__(self) -> tuple[object, ...]:
        return FrozenDict, (dict(self),)
