"""``python -m benchmarks.plots`` draws docs/plots from benchmarks/results, with matplotlib.

An SVG carries the digest of what it shows, and so whether it is current can be told without drawing it again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.environment import RESULTS
from benchmarks.figures import Plot, digest, everything

FOLDER = Path(__file__).parent.parent / "docs" / "plots"


def stale(folder: Path = FOLDER, results: Path = RESULTS) -> list[Plot]:
    """Plots whose SVG is not there or was drawn from something else."""
    return [plot for plot in everything(results) if not _current(folder / f"{plot.name}.svg", plot)]


def _current(path: Path, plot: Plot) -> bool:
    return path.exists() and digest(plot) in path.read_text(encoding="utf-8")


def orphans(folder: Path = FOLDER, results: Path = RESULTS) -> list[Path]:
    """Files of plots that are no more."""
    names = {plot.name for plot in everything(results)}
    return [path for path in sorted(folder.glob("*.svg")) if path.stem not in names]


def write(wanted: Iterable[Plot], folder: Path = FOLDER) -> None:
    """Draws plots; a ModuleNotFoundError where there is no matplotlib."""
    from benchmarks import drawing

    folder.mkdir(parents=True, exist_ok=True)
    for plot in wanted:
        path = folder / f"{plot.name}.svg"
        path.write_text(drawing.svg(plot, digest(plot)), encoding="utf-8")
        print(f"written to {path}")


def refresh(anew: bool = False, folder: Path = FOLDER, results: Path = RESULTS) -> int:
    """Draws what is not current, or everything, and removes what is no plot any more; 1 if it could not."""
    for path in orphans(folder, results):
        path.unlink()
    wanted = everything(results) if anew else stale(folder, results)
    try:
        if wanted:
            write(wanted, folder)
    except ModuleNotFoundError as missing:
        if missing.name != "matplotlib":
            raise
        print(MISSING, file=sys.stderr)
        return 1
    return 0


MISSING = "docs/plots is not drawn, for that takes matplotlib: pip install -c constraints.txt -e '.[benchmark]'"


def main() -> int:
    """Draws everything."""
    return refresh(anew=True)


if __name__ == "__main__":
    sys.exit(main())
