"""Saves two programs in turn under one name in a process that is killed, again and again; each time the file has to be
one of the two, whole. Run as ``python killed_saves.py FOLDER TIMES``, where ``a.trtp`` and ``b.trtp`` are."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import pipeline


def main(folder: Path, times: int) -> None:
    """Saves, kills, looks."""
    warnings.simplefilter("ignore", pipeline.ArtifactWarning)
    both = [pipeline.load(folder / name) for name in ("a.trtp", "b.trtp")]
    known = [(folder / name).read_bytes() for name in ("a.trtp", "b.trtp")]
    path, chance, seen = folder / "p.trtp", random.Random(0), set()
    both[0].save(path)
    for _ in range(times):
        child = os.fork()
        if not child:
            while True:
                for program in both:
                    program.save(path)
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert path.read_bytes() in known
        pipeline.load(path)
        seen.add(known.index(path.read_bytes()))
    parts = len(list(folder.glob(".p.trtp.*.part")))
    sys.stdout.write(f"seen {sorted(seen)}, {parts} parts left\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
