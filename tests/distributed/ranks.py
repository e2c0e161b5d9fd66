"""Run functions in several processes, which are the ranks of one process group."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import get_context

Case: TypeAlias = Callable[[int, Path], None]
TIMEOUT = 60
"""The seconds of a collective."""


def run_in_ranks(
    cases: Sequence[Case],
    ranks: int,
    folder: Path,
    backend: str = "gloo",
    gpus: Sequence[int] = (),
    longest: float = 300,
) -> dict[str, str]:
    """Run the cases in order in each rank; return what failed, by the case's name: the tracebacks of ranks, or how they
    ended.

    gpus: the GPU of each rank. longest: the seconds of all cases.
    """
    server: Any = get_context("spawn" if gpus else "forkserver")  # the latter imports once for all ranks
    if not gpus:
        server.set_forkserver_preload(["tests.distributed.more"])
    shared = (cases, ranks, folder, backend, gpus)
    processes = [server.Process(target=_rank, args=(rank, *shared)) for rank in range(ranks)]
    for process in processes:
        process.start()
    ends = time.monotonic() + longest
    for process in processes:
        process.join(max(0, ends - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    found = {case.__name__: "" for case in cases}
    for rank, code in enumerate(codes):
        path = folder / f"rank{rank}.json"
        done = json.loads(path.read_text()) if path.exists() else {}
        if absent := [name for name in found if name not in done]:
            end = "was killed" if code is None else f"ended with code {code}"
            done |= dict.fromkeys(
                absent, f"rank {rank} did not get to it, and {end}; its stderr:\n{_log(folder, rank)}\n"
            )
        for name in found:
            found[name] += done[name]
    return found


def _log(folder: Path, rank: int) -> str:
    """The end of what a rank wrote to stderr, with the seconds of each case."""
    path = folder / f"rank{rank}.log"
    return path.read_text(errors="replace")[-4000:] if path.exists() else "none: it ended while it was imported"


def _rank(rank: int, cases: Sequence[Case], ranks: int, folder: Path, backend: str, gpus: Sequence[int]) -> None:
    os.dup2(os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY), 2)
    faulthandler.enable()
    code = 1
    try:
        _join(rank, ranks, folder, backend, gpus)
        _run(rank, cases, folder)
        code = 0
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the store's file and sockets end with the processes: other ranks may have ended before


def _join(rank: int, ranks: int, folder: Path, backend: str, gpus: Sequence[int]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine without a network has no address for its name
    if gpus and torch.cuda.is_available():
        torch.cuda.set_device(gpus[rank])
    store, timeout = dist.FileStore(str(folder / "store"), ranks), timedelta(seconds=TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)


def _run(rank: int, cases: Sequence[Case], folder: Path) -> None:
    done: dict[str, str] = {}
    for case in cases:
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            case(rank, folder)
            done[case.__name__] = ""
        except (Exception, pytest.fail.Exception):
            done[case.__name__] = f"rank {rank}: {traceback.format_exc()}"
        sys.stderr.write(f"{case.__name__}: {time.monotonic() - began:.1f} s\n")
        (folder / f"rank{rank}.json").write_text(json.dumps(done))
