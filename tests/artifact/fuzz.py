"""Change saved programs by the grammar of their format, make the digests right again, and load and run what comes.

A file that runs has to compute the numbers that `tests.artifact.meaning`, which is no part of `pipeline`, reads in its
records. ``python -m tests.artifact.fuzz --seconds 600 --seed 1`` prints each file that does not, and is not refused
with a `PipelineError` either: other numbers, another error, a crash, 5 seconds, or 1 GiB more memory. The file is
written to ``--keep DIR``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen
from torch.utils._pytree import tree_leaves, tree_unflatten

import pipeline
import pipeline.artifact.inspect
from pipeline.artifact.container import MANIFEST
from pipeline.viewing.sources import open_view
from tests.artifact.damage import entries_of, rewritten
from tests.artifact.meaning import Meaning, UnknownError
from tests.artifact.programs import cases

Place: TypeAlias = "tuple[Any, Any]"
"""A container of JSON, and a key of it."""

SECONDS, BYTES = 5, 1 << 30
KINDS: Final = ("whole", "dynamic", "fallback", "branches", "mutation", "named tuple", "host")
SYMBOL = ["Symbol", "s77", "integer", "positive"]
OPERATORS: Final = """
    aten.add.Tensor aten.full.default aten.empty.memory_format aten.from_file.default aten.set_.source_Storage
    aten.resize_.default aten.zero_.default aten.expand.default aten.as_strided.default aten.repeat.default
    higher_order.cond higher_order.while_loop higher_order.wrap operator.getitem operator.mul builtins.pow math.floor
    prims.iota.default pipeline.run.default pipeline.cache_update.default tests_artifact.twice.default os.system
"""
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, -1, 0, 1, 2, 7, 64, 2**31, 2**40, 2**63 - 1, 2**63, 10**30, 0.5, -1e308, 1e308),
    *("", "x", "\x1b[2J", "a\nb", "\ud800", "../../x", "__init__", "a.b.c", "x" * 3000, "inside", "float32", "cuda:3"),
    *([], {}, [[]], [0], [[], []], {"tuple": []}, {"float": "nan"}, {"dtype": "float64"}, {"device": "meta"}),
    *({"node": "x"}, {"ref": "x"}, {"dict": [["a", 1]]}, {"slice": [None, None, -1]}, {"shape": [2**40, 2**20]}),
    *({"operator": "aten.from_file.default"}, {"constant": ["int64", [2**62]]}, {"size": SYMBOL}),
    *(["Pow", ["Pow", 9, 64], 64], ["Pow", 2, SYMBOL], ["LShift", 1, SYMBOL], ["FloorDiv", SYMBOL, 0], ["Max", SYMBOL]),
    *(["RoundDecimal", 1, -(10**9)], ["Add", *([SYMBOL] * 50)], SYMBOL, [2**20, 2**20], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
)


def places(data: Any) -> list[Place]:
    """All places of JSON: each container with each of its keys."""
    found: list[Place] = []
    waiting = [data]
    while waiting:
        each = waiting.pop()
        keys = list(each) if isinstance(each, dict) else list(range(len(each))) if isinstance(each, list) else []
        found += [(each, key) for key in keys]
        waiting += [each[key] for key in keys]
    return found


def another_value(chance: random.Random, all_places: Sequence[Place]) -> None:
    """A value is another one."""
    holder, key = chance.choice(all_places)
    holder[key] = copy.deepcopy(chance.choice(VALUES))


def a_value_from_elsewhere(chance: random.Random, all_places: Sequence[Place]) -> None:
    """A value is one that another place has, often of the same key."""
    holder, key = chance.choice(all_places)
    alike = [place for place in all_places if place[1] == key and isinstance(key, str)]
    source, name = chance.choice(alike if alike and chance.random() < 0.7 else all_places)
    holder[key] = copy.deepcopy(source[name])


def one_less(chance: random.Random, all_places: Sequence[Place]) -> None:
    """A part is missing."""
    holder, key = chance.choice(all_places)
    del holder[key]


def one_more(chance: random.Random, all_places: Sequence[Place]) -> None:
    """A part is there twice."""
    holder, key = chance.choice(all_places)
    if isinstance(holder, list):
        holder.insert(chance.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    else:
        holder[f"{key}_"] = copy.deepcopy(holder[key])


def exchanged(chance: random.Random, all_places: Sequence[Place]) -> None:
    """Two parts of one container change places."""
    holder, key = chance.choice(all_places)
    other = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def near_number(chance: random.Random, all_places: Sequence[Place]) -> None:
    """A number is larger or smaller."""
    numbers = [(h, k) for h, k in all_places if type(h[k]) is int]
    holder, key = chance.choice(numbers or all_places)
    value = holder[key] if type(holder[key]) is int else 0
    holder[key] = chance.choice((value + 1, value - 1, -value, value * 2, value * 2**20, value ^ 1))


def another_operator(chance: random.Random, all_places: Sequence[Place]) -> None:
    """A node, step or layer calls something else, or with another keyword."""
    calls = [(h, k) for h, k in all_places if k in ("target", "kind", "op")]
    holder, key = chance.choice(calls or all_places)
    if key == "target" and "kwargs" in holder and chance.random() < 0.3:
        holder["kwargs"] = {"dict": [[chance.choice(("dtype", "out", "x=[print(1)]", "a b")), chance.choice(VALUES)]]}
    else:
        holder[key] = chance.choice(OPERATORS.split())


CHANGES: Final[tuple[Callable[[random.Random, Sequence[Place]], None], ...]] = (
    *(another_value, a_value_from_elsewhere, one_less, one_more, exchanged, near_number, another_operator),
)


def parts_of(entries: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The records of a file, and its other entries."""
    records = {name: json.loads(data) for name, data in entries.items() if name.endswith(".json")}
    return records, {name: data for name, data in entries.items() if name not in records}


def changed(entries: Mapping[str, bytes], chance: random.Random) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The records and the other entries of a file in which something was changed in one to three places."""
    records, binary = parts_of(entries)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name = chance.choice([*entries])
        if name in records:
            found = [place for place in places(records[name]) if place[1] != "entries"]
            chance.choice(CHANGES)(chance, found or [(records, name)])
        elif (size := len(binary[name])) and chance.random() < 0.5:
            at = chance.randrange(min(size, 2048))
            data = binary[name]
            binary[name] = data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at + chance.randrange(9) :]
        else:
            other = chance.choice([*binary])
            binary[name], binary[other] = binary[other], binary[name]
    return records, binary


def file_of(records: Mapping[str, Any], binary: Mapping[str, bytes]) -> bytes:
    """The file, with digests that are right."""
    texts = {name: json.dumps(record).encode() for name, record in records.items() if name != MANIFEST}
    return rewritten({**texts, **binary}, records[MANIFEST])


class WrongNumbersError(Exception):
    """A file computes other numbers than its records say."""


@frozen
class Program:
    """A program that is changed: its name, entries and inputs, and what it returns for them."""

    name: str
    entries: Mapping[str, bytes]
    inputs: list[Any]
    outputs: list[Any]


def attempt(path: Path, program: Program, records: Mapping[str, Any], binary: Mapping[str, bytes]) -> str:
    """Describe, load and run a file; return what became of it.

    Raises:
        WrongNumbersError: it computes other numbers than its records say.
    """
    with contextlib.suppress(pipeline.ArtifactError):
        str(pipeline.artifact.inspect.inspect(path))
        str(open_view(path))
    try:
        loaded = pipeline.load(path)
        str(loaded), str(loaded.report())
        module = loaded.module("reference")
    except pipeline.PipelineError:
        return "refused"
    try:
        args, kwargs = tree_unflatten(list(program.inputs), module.program.in_spec)
        found = tree_leaves(module(*args, **kwargs))
    except pipeline.PipelineError as error:
        if "can't allocate" in str(error):
            raise MemoryError(str(error)) from error
        return "refused in a call"
    if alike(found, program.outputs):
        return "computed the same"
    try:
        said = Meaning(records, binary, program.inputs).outputs()
    except UnknownError:
        return "computed something that was not compared"
    if not alike(found, said):
        raise WrongNumbersError(f"{found} for {said}")
    return "computed what it says"


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether results are the same: dtypes, shapes, and numbers but for the order of sums."""
    return len(some) == len(others) and all(map(_alike, some, others))


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and (one == other or one != one)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _late(*_: object) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


def programs(folder: Path, kinds: Collection[str] = KINDS) -> Iterator[Program]:
    """The programs."""
    torch.manual_seed(0)
    for name, case in ((name, case) for name, case in cases().items() if name in kinds):
        made = pipeline.default(**case.settings)(case.model, args=case.args, dynamic_shapes=case.dynamic_shapes)
        made.save(folder / "p.trtp")
        inputs, outputs = (tree_leaves(each) for each in (case.args, made(*case.args)))
        yield Program(name, entries_of((folder / "p.trtp").read_bytes()), inputs, outputs)


def run(seconds: float, seed: int, keep: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Try files for so long; return how often each came to what, and the faults."""
    found, faults, chance = Counter[str](), list[str](), random.Random(seed)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _late)
    with tempfile.TemporaryDirectory() as name:
        made, path = list(programs(Path(name))), Path(name, "changed.trtp")
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.RLIM_INFINITY))
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            program = chance.choice(made)
            records, binary = changed(program.entries, chance)
            path.write_bytes(data := file_of(records, binary))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                found[attempt(path, program, records, binary)] += 1
            except BaseException as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if isinstance(error, KeyboardInterrupt):
                    raise
                frame = traceback.extract_tb(error.__traceback__)[-1]
                faults.append(
                    f"{program.name}: {type(error).__name__}: {str(error)[:200]} ({frame.filename}:{frame.lineno})"
                )
                if keep is not None:
                    (keep / f"{len(faults)}-{type(error).__name__}.trtp").write_bytes(data)
                    (keep / f"{len(faults)}.txt").write_text(traceback.format_exc())
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    return found, faults


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    found, faults = run(options.seconds, options.seed, options.keep)
    sys.stdout.write(f"{sum(found.values())} files: {dict(found)}\n" + "".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
