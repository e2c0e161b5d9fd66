"""``python -m benchmarks.kept_memory FILE``: loads a saved program in a process that has nothing else.

Prints as JSON the seconds, the memory in MB (10^6 bytes) above that before (now and at most), that of its engines, and
the packages that loading imported.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import pipeline
from pipeline.compose.resident import process_memory


def main(path: str) -> None:
    """Loads and prints."""
    warnings.simplefilter("ignore", pipeline.ArtifactWarning)
    modules, before, start = {*sys.modules}, process_memory().total, time.perf_counter()
    program = pipeline.load(path)
    seconds, after = time.perf_counter() - start, process_memory().total
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    engines = sum(engine.nbytes for engine in program.engines)
    found = {
        "fresh_load_s": round(seconds, 3),
        "extra_mb": round((after - before) / 1e6, 1),
        "peak_extra_mb": round((peak - before) / 1e6, 1),
        "engines_mb": round(engines / 1e6, 1),
        "imported": sorted({name.partition(".")[0] for name in {*sys.modules} - modules}),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
