"""The releases of TensorRT-RTX and torch that the package takes, and whether engines load on each GPU: one table that
requirements, documentation and errors share."""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

import torch
from attrs import frozen

from pipeline.errors import ExecutionError, VersionWarning, warn
from pipeline.frozen import FrozenDict
from pipeline.trt import CAPABILITIES, LIBRARY

Loads = Literal["runs", "listed", "not run", "no"]
"""``"runs"``: our tests ran there. ``"listed"``: NVIDIA's support matrix has it. ``"no"``: the engine does not load."""

TENSORRT_RTX: Final = ((1, 4), (1, 7))
"""The supported releases of TensorRT-RTX: the first, and the first unsupported one after them."""
TORCH: Final = ((2, 11), (2, 14))
"""The releases of torch, in the same form."""
TESTED: Final = "tensorrt-rtx==1.6.1.120"
"""The release that our tests run with."""


@frozen
class GpuSupport:
    """Whether engines of TensorRT-RTX load on a kind of GPU, by release, and which release to take there."""

    gpus: str
    capability: str
    loads: FrozenDict[str, Loads]
    note: str

    def on(self, version: tuple[int, ...]) -> Loads:
        """Return whether engines of this version load; "not run" for a release that has no row."""
        return self.loads.get(_dotted(version[:2]), "not run")


def _all(loads: Loads, **others: Loads) -> FrozenDict[str, Loads]:
    """Return a row with the same entry for each release; ``others`` differ (``v1_7="no"``)."""
    releases = ("1.4", "1.5", "1.6", "1.7")
    return FrozenDict({release: others.get(f"v{release.replace('.', '_')}", loads) for release in releases})


TABLE: Final = (
    GpuSupport("RTX 20, T4", "7.5", _all("listed"), 'only with `compute_capabilities=("7.5",)`'),
    GpuSupport("A100", "8.0", _all("not run"), "NVIDIA makes the `tensorrt` extra for it"),
    GpuSupport("RTX 30, A10, A40", "8.6", _all("listed"), ""),
    GpuSupport("RTX 40, L4, L40S", "8.9", _all("listed"), ""),
    GpuSupport(
        "H100, H200",
        "9.0",
        _all("runs", v1_7="no"),
        "in no support matrix; 1.6 alone sums float16 in float32 there and takes `NVIDIA_TF32_OVERRIDE=0`; engines "
        "that refit in place are built by 1.4 alone",
    ),
    GpuSupport("B200", "10.0", _all("not run"), "NVIDIA makes the `tensorrt` extra for it"),
    GpuSupport("RTX 50, RTX PRO Blackwell", "12.0", _all("listed"), ""),
    GpuSupport("GB10 (DGX Spark)", "12.1", _all("listed", v1_4="not run"), "listed from 1.5 on"),
)
"""The GPUs, by compute capability."""


def requirement(package: str, releases: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """Return the requirement on a package as pip reads it: ``torch>=2.11,<2.14``."""
    least, beyond = map(_dotted, releases)
    return f"{package}>={least},<{beyond}"


def check_library(gpu: str, capability: str) -> None:
    """Raise an error if engines of the installed TensorRT do not load on this GPU; warn once of untested releases.

    Args:
        gpu: the GPU's name, for the message.
        capability: its compute capability, such as ``"9.0"``.

    Raises:
        ExecutionError: no engine loads there; the hint has the command that installs another version.
    """
    row = next((row for row in TABLE if row.capability == capability), None)
    if CAPABILITIES.flavour == "tensorrt_rtx" and row is not None and row.on(CAPABILITIES.version_tuple) == "no":
        raise ExecutionError(
            f"{LIBRARY} loads no engine on this GPU ({gpu}, compute capability {capability})",
            f'pip install "{TESTED}", which does; to build for other GPUs here, name them (compute_capabilities)',
        )


@cache
def warn_of_untested() -> None:
    """Warn once of a release of TensorRT-RTX or torch that the tests did not run with."""
    torchs = tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2])
    rows = [("torch", str(torch.__version__), torchs, TORCH)]
    if CAPABILITIES.flavour == "tensorrt_rtx":
        rows.append(("tensorrt-rtx", CAPABILITIES.version, CAPABILITIES.version_tuple[:2], TENSORRT_RTX))
    for package, version, release, taken in rows:
        if not taken[0] <= release < taken[1]:
            asked = requirement(package, taken)
            message = f'{package} {version} is not one that pipeline was tested with: pip install "{asked}"'
            warn(message, VersionWarning)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
