"""``python -m benchmarks.replay record DIR`` and ``compare A B``: what two versions make of the same programs.

``record`` compiles example models, architectures of the zoo, random programs and calls of single operators, and writes
a text file for each: the program, its networks, the size and kernels of its engines (their bytes differ from build to
build where a network has several outputs), the refit map, and what stays in PyTorch. ``compare`` names every file that
differs, with the first line that does of each section; the exit code is 1 if there is one. Without options ``record``
takes two minutes; ``--zoo all --programs 0:500 --calls 4 --build-every 10`` proves more.
"""

from __future__ import annotations

import argparse
import io
import itertools
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import hypothesis
import torch
from attrs import frozen

import pipeline
from benchmarks.kernels import kernels
from benchmarks.zoo import TABLES, architectures, captured
from examples.models import SMALL, small
from pipeline.recipes import qualified_name
from pipeline.stages.unbuilt import unbuilt
from pipeline.testing import Call
from pipeline.testing.programs import build_call_program
from pipeline.testing.strategies import strategy_for
from tests.fuzz import program


@frozen
class Item:
    """Something to compile: its name, which is a file's too, and what gives its program."""

    name: str
    program: Callable[[], pipeline.Program]


def examples() -> Iterator[Item]:
    """The example models, small."""
    for name in SMALL:
        yield Item(f"example-{name}", lambda name=name: _case(small(name)))  # type: ignore[misc]


def _case(case: Any) -> pipeline.Program:
    return pipeline.capture(case.model, (), case.kwargs, case.dynamic_shapes)


def zoo(tables: tuple[str, ...], every: int) -> Iterator[Item]:
    """One in so many architectures of these tables of the zoo."""
    for table in tables:
        for found in architectures(table)[::every]:
            name = f"zoo-{table}-{found.name}"
            yield Item(name, lambda found=found: captured(found.case())[0])  # type: ignore[misc]


def programs(first: int, last: int) -> Iterator[Item]:
    """Random programs, by their seeds."""
    for seed in range(first, last):
        yield Item(f"program-{seed}", lambda seed=seed: program(seed).captured())  # type: ignore[misc]


def calls(count: int) -> Iterator[Item]:
    """So many calls of each operator that has a converter."""
    for target in sorted(pipeline.DYNAMO_CONVERTERS.unique_targets(), key=qualified_name):
        for number, call in enumerate(_drawn(target, count)):
            name = f"call-{qualified_name(target)}-{number}"
            yield Item(name, lambda call=call: build_call_program(call, pipeline.CompilationSettings()).program)  # type: ignore[misc]


def _drawn(target: Any, count: int) -> list[Call]:
    """The same calls of an operator every time; none where its arguments cannot be drawn."""
    strategy, found = strategy_for(target), []
    if strategy is None or not count:
        return []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(call: Call) -> None:
        found.append(call)

    with suppress(Exception):  # an operator of which no call can be drawn is replayed as part of programs alone
        collect()
    return found


def told(item: Item, build: bool) -> str:
    """What compiling gives, as text; or why there is nothing to compile, or how it fails."""
    torch.manual_seed(0)
    try:
        made = item.program()
    except Exception as error:  # mostly CaptureError: torch.export does not take it
        return f"refused: {type(error).__name__}: {error}\n"
    compile = pipeline.default() if build else pipeline.default().replace("build", unbuilt)
    try:
        return "\n".join(_sections(compile(made)))
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}\n"


def _sections(compiled: pipeline.Compiled) -> Iterator[str]:
    yield f"# program\n{compiled.program}"
    yield f"# coverage\n{compiled.coverage}"
    for network in compiled.networks:
        yield f"# network\n{network}"
    for engine in compiled.engines:
        yield f"# engine {engine.name}\n{len(engine.plan)} bytes, and its kernels:"
        yield from sorted(map(str, kernels(engine.plan)))
    yield f"# refit map\n{compiled.refit_map}"
    for name, why in compiled.refit_map.computed.items():
        yield f"not refittable: {name}: {why}"


def record(options: argparse.Namespace) -> int:
    """Compile what was asked for, a file each."""
    options.folder.mkdir(parents=True, exist_ok=True)
    tables = TABLES if options.zoo in ("all", "some") else () if options.zoo == "none" else (options.zoo,)
    first, last = map(int, options.programs.split(":"))
    every = 40 if options.zoo == "some" else 1
    chosen = [
        () if options.no_examples else examples(),
        zoo(tables, every),
        programs(first, last),
        calls(options.calls),
    ]
    started, number, names = time.monotonic(), -1, Counter[str]()
    for number, item in enumerate(itertools.chain(*chosen)):
        build = bool(options.build_every) and number % options.build_every == 0
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # what torch and models say meanwhile
            text = told(item, build)
        names[item.name] += 1
        again = f"-{names[item.name]}" if names[item.name] > 1 else ""
        (options.folder / f"{item.name.replace('/', '_')}{again}.txt").write_text(text, encoding="utf-8")
    print(f"{number + 1} recorded in {time.monotonic() - started:.0f} s: {options.folder}")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Name what differs."""
    one, other = ({p.name: p for p in folder.glob("*.txt")} for folder in (options.one, options.other))
    differing = 0
    for name in sorted(one.keys() | other.keys()):
        if difference := _difference(one.get(name), other.get(name)):
            differing += 1
            print(f"{name.removesuffix('.txt')}: {difference}")
    print(f"{differing} of {len(one.keys() | other.keys())} differ")
    return int(bool(differing) or not one)


def _difference(one: Path | None, other: Path | None) -> str:
    """The sections that differ, each with its first line that does."""
    if one is None or other is None:
        return f"only in {(one or other).parent}"  # type: ignore[union-attr]
    left, right = (_sectioned(path.read_text(encoding="utf-8")) for path in (one, other))
    lines = []
    for name in dict.fromkeys((*left, *right)):
        pairs = itertools.zip_longest(left.get(name, ()), right.get(name, ()), fillvalue="")
        if differing := next(((a, b) for a, b in pairs if a != b), None):
            lines.append("{}\n  - {}\n  + {}".format(name, *differing))
    return "\n".join(lines)


def _sectioned(text: str) -> dict[str, list[str]]:
    """The lines of each section by its head, of networks by their numbers."""
    found: dict[str, list[str]] = {"#": []}
    for line in text.splitlines():
        if line.startswith("# "):
            found[line if line not in found else f"{line} {len(found)}"] = []
        else:
            found[list(found)[-1]].append(line)
    return found


def main() -> int:
    """Records or compares; the exit code is 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.set_defaults(run=record)
    recording.add_argument("folder", type=Path)
    recording.add_argument("--no-examples", action="store_true", help="leave the example models out")
    recording.add_argument("--zoo", default="some", choices=("some", "all", "none", *TABLES))
    recording.add_argument("--programs", default="0:10", metavar="FIRST:LAST", help="seeds of random programs")
    recording.add_argument("--calls", type=int, default=1, help="calls of each operator")
    recording.add_argument("--build-every", type=int, default=0, help="build the engines of one in so many")
    comparing = commands.add_parser("compare")
    comparing.set_defaults(run=compare)
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    result: int = options.run(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
