"""``python -m benchmarks.real --out FILE.jsonl``: models at the sizes of real checkpoints, compiled and compared.

Each row and dtype has a process of its own, many at once on several GPUs, and a line of the file when it ends, also if
it fails. Rows that the file has are not run again, so that a run can go on where one before it was stopped. Times are
measured by one process at a time on a GPU. ``benchmarks.real_tables`` makes a result and a table of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from benchmarks.real_models import Row, rows
from benchmarks.real_tables import Key, key

DTYPES = ("float16", "bfloat16")
METHODS = ("eager + graph", "torch.compile reduce-overhead")
AUTOTUNE, PEER = "torch.compile max-autotune", "Torch-TensorRT + graph"
MEASURING = "BENCHMARKS_MEASURING_CORES"
"""The variable that tells a row's process on which cores it measures ("0,1"), which nothing else uses."""
QUIET = 2
"""Cores of the host that are left free for measurements, for each GPU, if there are eight times as many."""
PAUSE = 0.1
"""Seconds between looks at the processes."""
SAID = 400
"""Characters of what a process said last, if it dies."""


@frozen
class Job:
    """A row in a dtype, and the command that gives it: it writes the row to the file that is its last argument.

    heavy: how much it needs beside others, in the unit of `Row`.
    """

    name: str
    dtype: str
    command: tuple[str, ...]
    heavy: int = 1
    exact: bool = False
    torch_compile: str = ""

    @property
    def key(self) -> Key:
        """What a line of the results is known by."""
        return self.name, self.dtype, self.exact, self.torch_compile


class Running:
    """A job's process, on one GPU."""

    def __init__(
        self,
        job: Job,
        gpu: int,
        folder: Path,
        environment: Mapping[str, str],
        limit: float,
        measuring: Sequence[int],
        compiling: Sequence[int],
    ) -> None:
        self.job, self.gpu = job, gpu
        self.report, self.log = folder / "row.json", folder / "log.txt"
        self.until = time.monotonic() + limit
        caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "PIPELINE_CACHE")}
        own = {"CUDA_VISIBLE_DEVICES": _visible(gpu), MEASURING: ",".join(map(str, measuring)), **caches}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*job.command, str(self.report)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, **own},
                start_new_session=True,
            )
        with contextlib.suppress(ProcessLookupError):  # before it has threads, which inherit its cores
            os.sched_setaffinity(self.process.pid, compiling)

    def row(self) -> dict[str, Any] | None:
        """The row when the process has ended or is out of time; None while it runs."""
        code, late = self.process.poll(), time.monotonic() >= self.until
        if code is None and not late:
            return None
        self.kill()
        self.process.wait()
        found: dict[str, Any] = dict(zip(("name", "dtype", "exact", "torch_compile"), self.job.key, strict=True))
        found |= self.known()
        if "failed" not in found and (code or found.get("phase") != "done"):
            why = "it took too long" if code is None else f"its process ended with code {code}: {self._said()}"
            found["failed"] = {"phase": found.get("phase", "start"), "error": why}
        return found

    def known(self) -> dict[str, Any]:
        """What the process has reported so far."""
        try:
            known: dict[str, Any] = json.loads(self.report.read_text(encoding="utf-8"))
        except OSError:
            return {}
        return known

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace").strip()[-SAID:]

    def kill(self) -> None:
        """End the process, and those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def cores(gpu: int, gpus: int) -> tuple[list[int], list[int]]:
    """Cores on which rows of a GPU measure, and those on which all rows compile; on a small machine, all for both."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 8 * QUIET * gpus:
        return every, every
    return every[QUIET * gpu : QUIET * (gpu + 1)], every[QUIET * gpus :]


def _visible(gpu: int) -> str:
    """The GPU of that number among those that this process sees."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[gpu] if given else str(gpu)


def finished(path: Path, failed: bool = True) -> set[Key]:
    """The key of each row of a file; without those that failed if they are to run again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return {key(row) for row in found if failed or "failed" not in row}


def run(
    jobs: Iterable[Job],
    out: Path,
    *,
    processes: int = 1,
    gpus: int = 1,
    seconds: float = 520,
    limit: float = 300,
    most: int = 40,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run the jobs in order, so many at once, and append each row to the file when it is there.

    Those that run together are at most ``most`` heavy, if they are several: one that does not fit waits for the next.
    When ``seconds`` are over, what runs is ended without a row, and what it reported is printed. A job that takes more
    than ``limit`` is a failure.
    Returns how many jobs have no row.
    """
    waiting, running = list(jobs), list[Running]()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, out.open("a", encoding="utf-8") as file:
        try:
            while (waiting or running) and time.monotonic() < end:
                for each in [*running]:
                    if (row := each.row()) is not None:
                        running.remove(each)
                        shutil.rmtree(each.report.parent, ignore_errors=True)
                        _append(file, row)
                while len(running) < processes and (job := _next(waiting, running, most)):
                    gpu = min(range(gpus), key=lambda g: sum(each.job.heavy for each in running if each.gpu == g))
                    place = Path(tempfile.mkdtemp(dir=folder))
                    running.append(Running(job, gpu, place, environment or {}, limit, *cores(gpu, gpus)))
                time.sleep(PAUSE)
        finally:
            for each in running:
                each.kill()
            for each in running:
                each.process.wait()
                print(f"{each.job.name} {each.job.dtype} is not finished: {each.known()}", flush=True)
    return len(waiting) + len(running)


def _next(waiting: list[Job], running: Sequence[Running], most: int) -> Job | None:
    """The first job that fits beside those that run, which waits no more."""
    room = most - sum(each.job.heavy for each in running)
    found = next((job for job in waiting if job.heavy <= room or not running), None)
    if found:
        waiting.remove(found)
    return found


def _append(file: Any, row: Mapping[str, Any]) -> None:
    """A line that is on the disk when this returns."""
    file.write(json.dumps(row) + "\n")
    file.flush()
    os.fsync(file.fileno())
    keys = ("ratio", "error", "eager_error", "failed", "ms")
    print(row["name"], row["dtype"], json.dumps({key: row[key] for key in keys if key in row}), flush=True)


def chosen(pattern: str, only_small: bool = False) -> list[Row]:
    """The rows that can run here whose name matches, the heaviest first."""
    found = [row for row in rows() if re.search(pattern, row.name) and (row.small or not only_small)]
    for row in found:
        if not row.available:
            print(f"{row.name}: {row.library} is not installed", file=sys.stderr)
    return [row for row in found if row.available]


def child(options: argparse.Namespace, methods: Sequence[str]) -> int:
    """Give one row, in this process."""
    from benchmarks import real_row

    name, dtype, file = options.child
    [row] = [each for each in rows() if each.name == name]
    report, turns = real_row.Report(Path(file)), real_row.Turns(real_row.of_this_gpu())
    how = {"torch_compile": options.torch_compile}
    found = real_row.run(row, dtype, options.device, report, turns, methods, options.exact, **how)
    return 1 if "failed" in found else 0


def shares(processes: int) -> dict[str, str]:
    """Each process's threads: its share of the cores."""
    share = str(max(1, len(os.sched_getaffinity(0)) // processes))
    return {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="models at the sizes of real checkpoints, compiled and compared")
    made.add_argument("--out", type=Path, help="the file for the rows, to which they are added")
    made.add_argument("--rows", default="", help="a regular expression: rows whose name has it")
    made.add_argument("--small", action="store_true", help="the rows that the GPU tests run")
    made.add_argument("--dtypes", default=",".join(DTYPES))
    made.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: no times; the reference executor")
    made.add_argument("--processes", type=int, default=12, help="so many rows at once")
    made.add_argument("--most", type=int, default=40, help="heaviness at once: each is up to 3 GB of the host's memory")
    made.add_argument("--gpus", type=int, default=1)
    made.add_argument("--seconds", type=float, default=520, help="after which no row is waited for")
    made.add_argument("--limit", type=float, default=300, help="seconds for one row")
    made.add_argument("--without", nargs="*", default=(), help="methods left out, by the beginning of their names")
    made.add_argument("--autotune", action="store_true", help="torch.compile's max-autotune as well")
    made.add_argument("--peer", action="store_true", help="Torch-TensorRT as well, if it is installed")
    made.add_argument("--exact", action="store_true", help="compile with use_fp32_acc=True; rows of their own")
    made.add_argument("--torch-compile", metavar="MODE", help="compile with torch_compile=MODE, into a file of its own")
    made.add_argument("--retry", action="store_true", help="run rows again that failed")
    made.add_argument("--list", action="store_true", help="print the rows, and run none")
    made.add_argument("--child", nargs=3, metavar=("NAME", "DTYPE", "REPORT"), help=argparse.SUPPRESS)
    return made


def jobs(options: argparse.Namespace, arguments: Sequence[str]) -> list[Job]:
    """What is to run: a job for each row and dtype that the file has not."""
    before = finished(options.out, failed=not options.retry)
    command = (sys.executable, "-m", "benchmarks.real", *arguments, "--child")
    made = [
        Job(row.name, dtype, (*command, row.name, dtype), row.heavy, options.exact, options.torch_compile or "")
        for dtype in options.dtypes.split(",")
        for row in chosen(options.rows, options.small)
    ]
    return [job for job in made if job.key not in before]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 if rows are left, 2 if nothing could run."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    asked = (*METHODS, *[AUTOTUNE] * options.autotune, *[PEER] * options.peer)
    methods = [method for method in asked if not method.startswith(tuple(options.without))]
    if options.child:
        return child(options, methods)
    if options.list:
        for row in chosen(options.rows, options.small):
            print(f"{row.name:28} {'small' * row.small:6} {row.shapes}")
        return 0
    if options.out is None:
        print("benchmarks.real: --out names the file for the rows", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = jobs(options, arguments)
    how = {name: getattr(options, name) for name in ("processes", "gpus", "seconds", "limit", "most")}
    left = run(found, options.out, environment=shares(options.processes), **how)
    print(f"{len(found) - left} rows added, {left} left: {options.out}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
