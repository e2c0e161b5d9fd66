"""Determine an engine's optimization profiles: for each profile of the program, the ranges of the input sizes."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.errors import BuildError
from pipeline.frozen import FrozenDict
from pipeline.network.description import Profile
from pipeline.program import Port, Program, Segment
from pipeline.shapes.environment import LARGEST, Range, Symbols, bounds


def engine_profiles(program: Program, segment: Segment, is_shape: Callable[[Port], bool]) -> list[Profile]:
    """Return the distinct profiles that a segment's engine is built for; empty if no input is dynamic. ``is_shape``: a
    function that returns whether an input is a number that shapes depend on. A profile has a range for its value."""
    varying = [p for p in segment.inputs if any(not isinstance(d, int) for d in p.shape) or is_shape(p)]
    for port in varying:
        _check_size_limit(program, segment, port)
    if segment.profile is not None:
        symbols = symbols_in(program, segment)
        varying = [p for p in varying if p.is_number or any(r.min < r.max for r in _ranges(p, symbols))]
        return [_make_profile(varying, symbols)] if varying else []
    narrowings = program.profiles or (FrozenDict[str, Range](),)
    found = [_make_profile(varying, {**program.shapes, **each} if program.profiles else None) for each in narrowings]
    return list(dict.fromkeys(found)) if varying else []


def _check_size_limit(program: Program, segment: Segment, port: Port) -> None:
    """Raise `BuildError` if an input's size may exceed 32 bits, TensorRT's limit."""
    sizes = zip(port.shape, _ranges(port, symbols_in(program, segment)), strict=True) if port.kind == "tensor" else ()
    for size, range in sizes:
        if range.max >= 2**31:
            ends = "no bound" if range.max == LARGEST else f"sizes up to {range.max}"
            what = f"{segment.name}: the size {program.shapes.words(size)} of its input {port.name} has {ends}"
            raise BuildError(
                f"{what}, and a size in TensorRT is at most {2**31 - 1}",
                "set a smaller max for the dynamic dims that determine it (Dim or pipeline.Input), bound it with "
                "torch._check, or run the operators that read it in PyTorch (torch_executed_ops)",
            )


def symbols_in(program: Program, segment: Segment) -> Symbols:
    """Return the ranges of a program's symbols in a segment: those of the segment's profile if it has one."""
    return program.shapes if segment.profile is None else {**program.shapes, **program.profiles[segment.profile]}


def _make_profile(ports: list[Port], symbols: Symbols | None) -> Profile:
    """Return the min, opt and max sizes of ports; ``symbols``: ranges of symbols (None: the ports' own ranges)."""
    rows = [(port.name, port.ranges if symbols is None else _ranges(port, symbols)) for port in ports]
    return Profile(
        tuple((n, tuple(r.min for r in of), tuple(r.opt for r in of), tuple(r.max for r in of)) for n, of in rows)
    )


def _ranges(port: Port, symbols: Symbols) -> tuple[Range, ...]:
    """Return the ranges of the sizes of an input or output, given the ranges of symbols."""
    return tuple(bounds(size, symbols) for size in (port.shape if port.kind == "tensor" else (port.value,)))
