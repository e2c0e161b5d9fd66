"""The library releases that the tests cover, and the GPUs on which TensorRT's engines load.
Requirements, documentation, warnings and errors use these tables."""

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
"""Whether engines load on a GPU: yes by our tests, yes by NVIDIA's support matrix, unknown, or no."""


@frozen
class TestedReleases:
    """The first and last minor release of a library that the tests cover, and the docs page with this range."""

    first: tuple[int, int]
    last: tuple[int, int]
    page: str

    def __str__(self) -> str:
        first, last = _format_version(self.first), _format_version(self.last)
        return first if first == last else f"{first} to {last}"

    def includes(self, release: str) -> bool:
        """Return whether a release is in the tested range; a patch release counts as its minor release."""
        return self.first <= tuple(map(int, re.findall(r"\d+", release)[:2])) <= self.last

    def pip_requirement(self, library: str) -> str:
        """Return the range as a requirement for pip: ``torch>=2.11,<2.14``."""
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
"""For each library, by the name of its distribution: the tested releases."""
TENSORRT_RTX: Final = "tensorrt-rtx==1.6.1.120"
"""The requirement for pip of the TensorRT-RTX release with which our tests run by default."""


@frozen
class GpuSupport:
    """Whether engines load on a kind of GPU: ``loads`` by release of TensorRT-RTX (``"1.6"``), and ``note``, advice."""

    gpus: str
    capability: str
    loads: FrozenDict[str, Loads]
    note: str

    def loads_for(self, version: tuple[int, ...]) -> Loads:
        """Return whether engines of this version of TensorRT-RTX load on this kind of GPU; "not run" if unknown."""
        return self.loads.get(_format_version(version[:2]), "not run")


def _loads_by_release(loads: Loads, **exceptions: Loads) -> FrozenDict[str, Loads]:
    """Return whether engines load, by TensorRT-RTX release: ``loads`` except for ``exceptions`` (``v1_7="no"``)."""
    releases = ("1.4", "1.5", "1.6", "1.7")
    return FrozenDict({release: exceptions.get(f"v{release.replace('.', '_')}", loads) for release in releases})


TABLE: Final = (
    GpuSupport("RTX 20, T4", "7.5", _loads_by_release("listed"), 'only with `compute_capabilities=("7.5",)`'),
    GpuSupport("A100", "8.0", _loads_by_release("not run"), "install TensorRT 10 or 11 (the `tensorrt` extra)"),
    GpuSupport("RTX 30, A10, A40", "8.6", _loads_by_release("listed"), ""),
    GpuSupport("RTX 40, L4, L40S", "8.9", _loads_by_release("listed"), ""),
    GpuSupport(
        "H100, H200",
        "9.0",
        _loads_by_release("runs", v1_7="no"),
        "not in NVIDIA's support matrix; only 1.6 accumulates float16 in float32 and accepts `NVIDIA_TF32_OVERRIDE=0`; "
        "only 1.4 builds engines that can be refitted in place",
    ),
    GpuSupport("B200", "10.0", _loads_by_release("not run"), "install TensorRT 10 or 11 (the `tensorrt` extra)"),
    GpuSupport("RTX 50, RTX PRO Blackwell", "12.0", _loads_by_release("listed"), ""),
    GpuSupport("GB10 (DGX Spark)", "12.1", _loads_by_release("listed", v1_4="not run"), "supported from 1.5 on"),
)
"""The GPUs on which we know whether TensorRT-RTX engines load, by compute capability."""


def check_engines_load(gpu: str, compute_capability: str) -> None:
    """Raise an `ExecutionError` if engines of the installed TensorRT do not load on this GPU; the hint has the command
    that installs another version. ``compute_capability``: such as ``"9.0"``."""
    row = next((row for row in TABLE if row.capability == compute_capability), None)
    if CAPABILITIES.flavour == "tensorrt_rtx" and row is not None and row.loads_for(CAPABILITIES.version_tuple) == "no":
        raise ExecutionError(
            f"{LIBRARY} loads no engine on this GPU ({gpu}, compute capability {compute_capability})",
            f'pip install "{TENSORRT_RTX}" for this GPU; to build for other GPUs, list them in compute_capabilities',
        )


@cache
def warn_if_untested(library: str) -> None:
    """Warn, once in a process, if the installed release of a library is outside of its tested range."""
    own, tested = _installed_release(library), TESTED[library]
    if own and not tested.includes(own):
        page, advice = f"docs/{tested.page}.md", f'pip install "{tested.pip_requirement(library)}"'
        message = f"{library} {own} is installed, but only {tested} are tested ({page})"
        warn(f"{message}: compare results (verify=True), or {advice}", VersionWarning)


def _installed_release(library: str) -> str | None:
    """Return a library's installed release; None if no package of this name is installed."""
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
