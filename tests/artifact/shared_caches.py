"""Processes that compile the same programs with one engine cache: every engine is built once, and found by all.

Run as ``python shared_caches.py FOLDER PROCESSES COMPILATIONS``: so many compilations are shared out, of a fourth as
many programs (at least 4), so that processes often want the same engine at the same time.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

import torch
from attrs import frozen

import pipeline
from pipeline.stages.build import build
from tests.artifact.key_programs import STAGES, Drawn, drawn


@frozen
class Noted:
    """``build``, which writes down the plans that it builds."""

    path: Path
    name: str = "build"

    def __call__(self, converted: pipeline.Converted) -> pipeline.Built:
        """The engines."""
        made: pipeline.Built = build(converted)
        with self.path.open("a") as file:
            file.write("".join(f"{engine.digest} {os.getpid()}\n" for engine in made.engines))
        return made


def programs(count: int) -> list[Drawn]:
    """So many different programs."""
    chance, found = Random(0), dict[str, Drawn]()
    while len(found) < count:
        made = drawn(chance)
        found.setdefault(made.key(), made)
    return list(found.values())


def work(folder: Path, different: list[Drawn], order: list[int]) -> list[tuple[int, str]]:
    """Compiles programs in an order: of each the number, and the plan's digest."""
    torch.set_num_threads(1)
    compile: Callable[[pipeline.Program], pipeline.Built] = STAGES | pipeline.cached(
        pipeline.DiskStore(folder / "engines"), Noted(folder / "built")
    )
    return [(i, compile(different[i].program()).engines[0].digest) for i in order]


def main(folder: Path, processes: int, count: int) -> None:
    """Compiles in several processes, and compares what they got."""
    different = programs(max(4, count // 4))
    order = [i % len(different) for i in range(count)]
    Random(0).shuffle(order)
    shares = [order[i::processes] for i in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        rows = [row for rows in pool.map(partial(work, folder, different), shares) for row in rows]
    digests = {i: {digest for j, digest in rows if j == i} for i in range(len(different))}
    built = Counter(line.split()[0] for line in (folder / "built").read_text().splitlines())
    assert len(rows) == count
    assert all(len(found) == 1 for found in digests.values()), "one program, one engine"
    assert built.keys() == {digest for found in digests.values() for digest in found}, "what was built is what was used"
    assert len(list((folder / "engines").glob("*.engine"))) == len(different), "nothing is lost"
    twice = sum(count > 1 for count in built.values())
    sys.stdout.write(
        f"{processes} processes, {count} compilations: {len(different)} engines, {twice or 'none'} built twice\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
