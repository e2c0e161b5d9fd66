"""``ProfiledSession``: an engine with several profiles; the shapes of a call choose the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.errors import ExecutionError
from pipeline.network.description import Network
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import Session
from pipeline.trt import trt


class ProfiledSession:
    """Run each call in the first profile that it fits; contexts are created on demand, and share memory and weights."""

    def __init__(self, network: Network, make: Callable[[torch.cuda.Stream, int], Session]) -> None:
        self.network, self._make = network, make
        self._names = [tensor.name for tensor in network.inputs]
        self._sessions: dict[int, Session] = {}
        self._last: tuple[object, Session] | None = None

    def __call__(
        self, inputs: Sequence[Any], stream: torch.cuda.Stream, *, like: object = None, **options: Any
    ) -> list[Any]:
        """Return the outputs of a run, as `Session.__call__`."""
        last = self._last
        if last is not None and like is not None and last[0] is like:
            return last[1](inputs, stream, like=like, **options)
        place = self.place(inputs)
        session = self._sessions.get(place)
        if session is None:
            session = self._sessions.setdefault(place, self._make(stream, place))
        self._last = like, session
        return session(inputs, stream, like=like, **options)

    @property
    def last(self) -> Session:
        """The session of the last run.

        Raises:
            ExecutionError: no call has run.
        """
        if self._last is None:
            raise ExecutionError(f"{self.network.name} has run in none of its profiles", "call the module first")
        return self._last[1]

    @property
    def context(self) -> trt.IExecutionContext:
        """The execution context of the last run."""
        return self.last.context

    @property
    def loaded(self) -> LoadedEngine:
        return self.last.loaded

    def place(self, inputs: Sequence[Any]) -> int:
        """Return the number of the profile for these inputs.

        Raises:
            ExecutionError: no profile fits.
        """
        sizes = (tuple(v.shape) if isinstance(v, torch.Tensor) else (int(v),) for v in inputs)
        shapes = dict(zip(self._names, sizes, strict=True))
        for place, profile in enumerate(self.network.profiles):
            limits = ((low, shapes[name], high) for name, low, _, high in profile.ranges)
            if all(a <= size <= b for row in limits for a, size, b in zip(*row, strict=True)):
                return place
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ExecutionError(f"{self.network.name} has no profile for {given}")
