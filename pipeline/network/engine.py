"""Define ``Engine``: a network that TensorRT has built and serialized."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from pipeline.frozen import FrozenDict


@frozen
class Engine:
    """A serialized engine. ``plan`` is the buffer that TensorRT loads, for a single version of the library. ``digest``
    is the plan's SHA-256, in hexadecimal digits.

    A cached plan may have been built for a program with other names: ``bindings`` (inputs and outputs) and ``weights``
    then map the network's names to the plan's. A ``stripped`` plan has no weights: the program supplies them when the
    engine is loaded. ``file``: the file that ``plan`` maps into memory (`pipeline.runtime.opened_file`); None if it
    cannot be overwritten.
    """

    name: str
    plan: Any = field(eq=False, repr=False)
    library: str
    refittable: bool = False
    digest: str = ""
    bindings: FrozenDict[str, str] = field(factory=FrozenDict, repr=False)
    weights: FrozenDict[str, str] = field(factory=FrozenDict, repr=False)
    stripped: bool = False
    file: Any = field(default=None, eq=False, repr=False)

    def checked_plan(self) -> Any:
        """Return the plan; raise an `ArtifactError` if the file that contains it has been overwritten."""
        if self.file is not None:
            self.file.check()
        return self.plan

    @property
    def nbytes(self) -> int:
        """Size of the plan in bytes."""
        return memoryview(self.plan).nbytes

    def __bytes__(self) -> bytes:
        return bytes(memoryview(self.checked_plan()))
