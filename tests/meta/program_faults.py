"""Faults in how whole programs are captured, cut and run; random programs must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from attrs import evolve, frozen

import pipeline.runtime.module
from pipeline.capture import lifting
from pipeline.runtime.snapshot import Snapshot
from pipeline.runtime.worker import SegmentExecutor
from pipeline.stages.partition import Partition

patch = mock.patch.object


@frozen
class ProgramFault:
    """``planted()`` is the context in which the fault is there; ``kind`` is how it shows. Programs before ``first``
    have nothing that it spoils."""

    name: str
    kind: str
    planted: Callable[[], AbstractContextManager[Any]]
    first: int = 0


def not_written_back() -> AbstractContextManager[Any]:
    """Mutations reach neither buffers nor inputs."""
    return patch(SegmentExecutor, "write_mutations", lambda self, slots, leaves: None)


def buffers_only() -> AbstractContextManager[Any]:
    """Mutations reach buffers, and inputs do not change."""
    write = SegmentExecutor.write_mutations

    def written(self: SegmentExecutor, slots: Any, leaves: Any) -> None:
        write(self, slots, [leaf.clone() if hasattr(leaf, "clone") else leaf for leaf in leaves])

    return patch(SegmentExecutor, "write_mutations", written)


def segments_swapped() -> AbstractContextManager[Any]:
    """The last segment runs first."""
    run = SegmentExecutor.run

    def reversed_run(self: SegmentExecutor, slots: Any, plan: Any, turn: Any) -> Any:
        self._set_steps(tuple(sorted(self._steps, key=lambda step: -step[0].gives[0] if step[0].gives else 0)))
        return run(self, slots, plan, turn)

    return patch(SegmentExecutor, "run", reversed_run)


def sizes_baked_in() -> AbstractContextManager[Any]:
    """A size is for ever what it was at the first call."""
    evaluate, first = pipeline.runtime.module.evaluate_number, {}

    def remembered(expr: Any, symbols: Any) -> Any:
        return first.setdefault(str(expr), evaluate(expr, symbols))

    return patch(pipeline.runtime.module, "evaluate_number", remembered)


def alias_lost() -> AbstractContextManager[Any]:
    """An input that is changed and returned comes back as another tensor."""
    outputs = lifting._make_outputs

    def without_targets(*args: Any) -> Any:
        return tuple(evolve(o, target="") if o.kind == "user" else o for o in outputs(*args))

    return patch(lifting, "_make_outputs", without_targets)


def constants_mixed_up() -> AbstractContextManager[Any]:
    """Of parameters that are alike in shape and dtype, the last is taken for all."""
    get = Snapshot.__getitem__

    def another(self: Snapshot, name: str) -> Any:
        tensor = get(self, name)
        alike = [n for n in self if get(self, n).shape == tensor.shape and get(self, n).dtype == tensor.dtype]
        return get(self, alike[-1])

    return patch(Snapshot, "__getitem__", another)


def small_blocks() -> AbstractContextManager[Any]:
    """``min_block_size`` is not asked for."""
    cut = Partition.__call__

    def cut_small(self: Partition, validated: Any) -> Any:
        program = validated.program
        free = evolve(program, settings=program.settings.evolve(min_block_size=1))
        return evolve(cut(self, evolve(validated, program=free)), program=program)

    return patch(Partition, "__call__", cut_small)


PROGRAM_FAULTS = (
    ProgramFault("mutation not written back", "mutation|values", not_written_back),
    ProgramFault("inputs not written back", "mutation|values", buffers_only),
    ProgramFault("segments swapped", "runs|values", segments_swapped),
    ProgramFault("sizes baked in", "runs|values", sizes_baked_in, 15),
    ProgramFault("alias lost", "aliasing", alias_lost),
    ProgramFault("constants mixed up", "values|mutation", constants_mixed_up),
    ProgramFault("small blocks", "blocks", small_blocks, 62),
)
