"""Saves entries to an engine cache in a process that is killed, again and again; each time every entry has to be whole,
or not there. Run as ``python killed_caches.py FOLDER TIMES``."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import pipeline

KEYS = [f"{i:02x}" * 32 for i in range(6)]


def content(key: str) -> bytes:
    """What is saved under a key."""
    return random.Random(key).randbytes(200_000)


def main(folder: Path, times: int) -> None:
    """Saves, kills, looks. The cache holds four of six entries, so that writing evicts."""
    warnings.simplefilter("error", pipeline.ArtifactWarning)
    store, known = pipeline.DiskStore(folder, 4 * 200_100), {key: content(key) for key in KEYS}
    chance, seen = random.Random(0), 0
    for _ in range(times):
        child = os.fork()
        if not child:
            while True:
                for key, data in known.items():
                    with store.lock_builds([key]):
                        store.save(key, data)
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = {key: data for key in KEYS if (data := store.load(key)) is not None}
        assert all(known[key] == data for key, data in found.items())
        seen += len(found)
    with store.lock_builds(KEYS):  # no lock outlives its process
        parts = len(list(folder.glob(".*.part")))
        sys.stdout.write(f"{times} kills, {seen} entries loaded, none wrong, {parts} parts left\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
