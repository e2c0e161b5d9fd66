"""``python -m benchmarks.sharded_hang``: a rank is killed while the others wait for it.

The benchmark starts its own ranks, which generate fifty times with the same tokens. Then the last one kills itself in
the middle of a call. The others have to end within the timeout of the process group.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from benchmarks.environment import RESULTS, environment
from benchmarks.sharded import GRAPHS, METHODS, MODELS, cuda, greedy, joined, model_of, ours, say

RUNS: Final = 50
"""The runs before a rank is killed."""


def rank_of_test(options: Any) -> int:
    """Generate fifty times; then the last rank kills itself in the middle of the next one."""
    with joined(options.timeout):
        model = model_of(options.model, options.layers, 2 * options.prompt, sharded=True)
        made, step = ours(model, 1, options.prompt + 64, options.prompt, options.method)
        first = greedy(made, 1, options.prompt)[0]
        for run in range(RUNS):
            if greedy(made, 1, options.prompt)[0] != first:
                print(f"rank {dist.get_rank()}: run {run} gave other tokens", flush=True)
                return 3
        say(f"{RUNS} runs, all with the same tokens")
        for count in range(100_000):
            if count == 20 and dist.get_rank() == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if count == 20:
                print("a rank is killed", time.time(), flush=True)
            step(1)
            if cuda():
                torch.cuda.synchronize()
    return 4


def hang_test(options: Any) -> int:
    """Start ranks; say whether the others ended within the timeout once one was killed, and how."""
    count = options.ranks
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port), "WORLD_SIZE": str(count)}
    command = [sys.executable, "-m", "benchmarks.sharded_hang", "--one-of-the-ranks", *sys.argv[1:]]
    each = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    ranks = [subprocess.Popen(command, env=env) for env in each]
    try:
        ranks[-1].wait(options.seconds)
        killed = time.perf_counter()
        for rank in ranks[:-1]:
            rank.wait(options.timeout + 60)
        took = time.perf_counter() - killed
        ends = [rank.returncode for rank in ranks]
    except subprocess.TimeoutExpired:
        took, ends = float("inf"), [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    good = ends[-1] == -signal.SIGKILL and all(end not in (0, 3, 4, None) for end in ends[:-1])
    row = {"hang_test": "passed" if good else "failed", "runs": RUNS, "ended_by": ends, "seconds": round(took, 1)}
    print(json.dumps(row), flush=True)
    more = {"method": options.method, "timeout": options.timeout, "at": environment()}
    with options.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, **more}) + "\n")
    return 0 if good else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test, or one of its ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="8B", choices=list(MODELS))
    parser.add_argument("--method", default=GRAPHS, choices=METHODS)
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=600, help="until a rank is killed")
    parser.add_argument("--timeout", type=float, default=60, help="seconds of a collective")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", type=int, default=29533)
    parser.add_argument("--out", type=Path, default=RESULTS / "sharded.jsonl")
    parser.add_argument("--one-of-the-ranks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    return rank_of_test(options) if options.one_of_the_ranks else hang_test(options)


if __name__ == "__main__":
    sys.exit(main())
