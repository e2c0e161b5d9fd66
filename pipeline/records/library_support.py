"""The library releases that the tests cover, and the GPUs on which TensorRT's engines load: the common source of
requirements, documentation, warnings and errors."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final, Literal

import torch
from attrs import frozen

from pipeline.errors import ExecutionError, VersionWarning, warn
from pipeline.frozen import FrozenDict
from pipeline.trt import CAPABILITIES, LIBRARY

Loads = Literal["runs", "listed", "not run", "no"]
"""``"runs"``: our tests ran there. ``"listed"``: NVIDIA's support matrix has it. ``"no"``: the engine does not load."""


@frozen
class TestedReleases:
    """The first and the last minor release of a library that the tests cover, and the page that states them."""

    first: tuple[int, int]
    last: tuple[int, int]
    page: str

    def __str__(self) -> str:
        first, last = _format_version(self.first), _format_version(self.last)
        return first if first == last else f"{first} to {last}"

    def includes(self, release: str) -> bool:
        """Return whether a release is in the tested range; a patch release counts as its minor release."""
        return self.first <= tuple(map(int, re.findall(r"\d+", release)[:2])) <= self.last

    def requirement(self, library: str) -> str:
        """Return the requirement for pip: ``torch>=2.11,<2.14``."""
        major, minor = self.last
        return f"{library}>={_format_version(self.first)},<{major}.{minor + 1}"


TESTED: Final = MappingProxyType(
    {
        "tensorrt-rtx": TestedReleases((1, 4), (1, 6), "versions"),
        "torch": TestedReleases((2, 11), (2, 13), "versions"),
        "transformers": TestedReleases((5, 17), (5, 23), "language-models"),
        "torchao": TestedReleases((0, 18), (0, 18), "quantization"),
        "nvidia-modelopt": TestedReleases((0, 47), (0, 47), "quantization"),
    }
)
"""By the name of the distribution. Each page states the range."""
TENSORRT_RTX: Final = "tensorrt-rtx==1.6.1.120"
"""The release of TensorRT-RTX that our tests run with by default."""


@frozen
class GpuSupport:
    """Whether engines of TensorRT-RTX load on a kind of GPU, by release, and the recommended release."""

    gpus: str
    capability: str
    loads: FrozenDict[str, Loads]
    note: str

    def status(self, version: tuple[int, ...]) -> Loads:
        """Return whether engines of this version load; "not run" for a release that has no row."""
        return self.loads.get(_format_version(version[:2]), "not run")


def _support_row(loads: Loads, **others: Loads) -> FrozenDict[str, Loads]:
    """Return a table row with the same entry for each release, except those in ``others`` (``v1_7="no"``)."""
    releases = ("1.4", "1.5", "1.6", "1.7")
    return FrozenDict({release: others.get(f"v{release.replace('.', '_')}", loads) for release in releases})


TABLE: Final = (
    GpuSupport("RTX 20, T4", "7.5", _support_row("listed"), 'only with `compute_capabilities=("7.5",)`'),
    GpuSupport("A100", "8.0", _support_row("not run"), "NVIDIA makes the `tensorrt` extra for it"),
    GpuSupport("RTX 30, A10, A40", "8.6", _support_row("listed"), ""),
    GpuSupport("RTX 40, L4, L40S", "8.9", _support_row("listed"), ""),
    GpuSupport(
        "H100, H200",
        "9.0",
        _support_row("runs", v1_7="no"),
        "in no support matrix; 1.6 alone sums float16 in float32 there and takes `NVIDIA_TF32_OVERRIDE=0`; engines "
        "that refit in place are built by 1.4 alone",
    ),
    GpuSupport("B200", "10.0", _support_row("not run"), "NVIDIA makes the `tensorrt` extra for it"),
    GpuSupport("RTX 50, RTX PRO Blackwell", "12.0", _support_row("listed"), ""),
    GpuSupport("GB10 (DGX Spark)", "12.1", _support_row("listed", v1_4="not run"), "listed from 1.5 on"),
)
"""The GPUs, by compute capability."""


def check_library(gpu: str, capability: str) -> None:
    """Raise an `ExecutionError` if engines of the installed TensorRT do not load on this GPU of a compute capability
    (``"9.0"``); the hint has the command that installs another version."""
    row = next((row for row in TABLE if row.capability == capability), None)
    if CAPABILITIES.flavour == "tensorrt_rtx" and row is not None and row.status(CAPABILITIES.version_tuple) == "no":
        raise ExecutionError(
            f"{LIBRARY} loads no engine on this GPU ({gpu}, compute capability {capability})",
            f'pip install "{TENSORRT_RTX}" for this GPU; to build for other GPUs, list them in compute_capabilities',
        )


@cache
def warn_untested(library: str) -> None:
    """Warn, once in a process, if the installed release of a library is outside of its tested range."""
    own, tested = _installed_release(library), TESTED[library]
    if own and not tested.includes(own):
        found = f"{library} {own} is installed; {tested} are tested (docs/{tested.page}.md)"
        advice = f'compare results (verify=True), or pip install "{tested.requirement(library)}"'
        warn(f"{found}: {advice}", VersionWarning)


def _installed_release(library: str) -> str | None:
    """Return the installed release; None if the library is missing (a graph can contain its operators all the same)."""
    if library == "torch":
        return str(torch.__version__)
    if library == "tensorrt-rtx":
        return CAPABILITIES.version if CAPABILITIES.flavour == "tensorrt_rtx" else None
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
