"""``python -m benchmarks.key_pairs COUNT [SEED]``: pairs of random programs that differ in one place, whose engines
have to have different keys in the engine cache; and a tenth as many that differ in names alone, and have equal keys.

Writes ``benchmarks/results/key_pairs.json``, a row for each seed; rows of earlier runs stay.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.environment import collect
from tests.artifact.key_programs import compare

STEP = 1000


def rows(count: int, seed: int) -> Iterator[list[dict[str, Any]]]:
    """How many pairs of a seed were compared, every `STEP` of them. One whose keys are wrong ends it, and shows it."""
    start = time.perf_counter()
    for done in compare(count, seed):
        if done % STEP == 0 or done == count:
            seconds = round(time.perf_counter() - start)
            yield [{"seed": seed, "pairs": done, "different": done, "renamed_equal": done // 10, "seconds": seconds}]


def main() -> None:
    """Compares, prints and writes down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="how many pairs")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="of the random programs")
    options = parser.parse_args()
    collect("key_pairs", "pairs", rows(options.count, options.seed), of=("seed",), add=True)


if __name__ == "__main__":
    main()
