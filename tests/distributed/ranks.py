"""Run functions in several processes, which are the ranks of one process group."""

from __future__ import annotations

import json
import os
import sys
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


def run_in_ranks(
    cases: Sequence[Case], ranks: int, folder: Path, backend: str = "gloo", gpus: Sequence[int] = ()
) -> dict[str, str]:
    """Run the cases in order in each rank; return what failed, by the case's name: the tracebacks of ranks.

    gpus: the GPU of each rank.
    """
    server: Any = get_context("spawn" if gpus else "forkserver")  # the latter imports once for all ranks
    if not gpus:
        server.set_forkserver_preload(["tests.distributed.more"])
    shared = (cases, ranks, folder, backend, gpus)
    processes = [server.Process(target=_rank, args=(rank, *shared)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        process.kill()
    found = {case.__name__: "" for case in cases}
    for rank in range(ranks):
        path = folder / f"rank{rank}.json"
        done = json.loads(path.read_text()) if path.exists() else {}
        for name in found:
            found[name] += done.get(name, f"rank {rank} did not get to it\n")
    return found


def _rank(rank: int, cases: Sequence[Case], ranks: int, folder: Path, backend: str, gpus: Sequence[int]) -> None:
    torch.set_num_threads(1)
    if gpus:
        torch.cuda.set_device(gpus[rank])
    store, timeout = dist.FileStore(str(folder / "store"), ranks), timedelta(seconds=TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    done: dict[str, str] = {}
    for case in cases:
        torch.manual_seed(0)
        try:
            case(rank, folder)
            done[case.__name__] = ""
        except (Exception, pytest.fail.Exception):
            done[case.__name__] = f"rank {rank}: {traceback.format_exc()}"
        (folder / f"rank{rank}.json").write_text(json.dumps(done))
    sys.stdout.flush()
    os._exit(0)  # the store's file and sockets end with the processes: other ranks may have ended before
