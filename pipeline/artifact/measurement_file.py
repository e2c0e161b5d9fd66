"""Save the measured times of engines and of PyTorch to a JSON file, with the GPU and the versions of libraries."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import filelock
import torch
from attrs import field, frozen, validators

from pipeline.artifact import codec
from pipeline.artifact.json_data import decode_json, encode_json
from pipeline.errors import ArtifactError
from pipeline.profiling.measurements import Measurements, Milliseconds
from pipeline.runtime.atomic import replace_file
from pipeline.runtime.engine_cache import cache_folder
from pipeline.runtime.engine_load import current_capability, is_for_this_gpu
from pipeline.runtime.private import MODE, make_private_folder, open_private_file
from pipeline.settings import CompilationSettings
from pipeline.trt import LIBRARY, has_gpu

log = logging.getLogger(__name__)

MOST: Final = 10_000
"""The maximum number of measurements in the file; the oldest are deleted."""
BYTES: Final = 16 << 20
"""The maximum bytes of the file; a larger file is not read."""


def _check_milliseconds(_: object, field: object, value: Any) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{value} is not a duration: expected a number of milliseconds, at least 0")


@frozen
class MeasurementRow:
    """The milliseconds that a program or engine takes in TensorRT, and in PyTorch (None: not measured); the GPU, and
    the libraries' versions. ``key``: the digest of the program or network and of the settings that affect times."""

    key: str = field(validator=validators.matches_re("[0-9a-f]{64}"))
    gpu: str
    capability: str
    tensorrt: str
    torch: str
    engine_ms: float = field(validator=_check_milliseconds)
    torch_ms: float | None = field(default=None, validator=_check_milliseconds)

    @property
    def gpu_and_versions(self) -> tuple[str, str, str, str]:
        """Return what times depend on: the GPU, its compute capability, and the versions of TensorRT and torch."""
        return self.gpu, self.capability, self.tensorrt, self.torch


@frozen
class MeasurementTable:
    """The contents of a `MeasurementFile`, as JSON: a row for each program or engine whose time was measured."""

    format: Literal["pipeline measurements"]
    schema: int
    rows: tuple[MeasurementRow, ...] = ()


@frozen
class MeasurementFile(Measurements):
    """A file with measured times of engines and of PyTorch, which processes can share: at the given path, or in the
    user's cache folder. If the file is unreadable, this is logged and the file stays unchanged."""

    given: Path | None = None

    @property
    def path(self) -> Path:
        return self.given or cache_folder("measurements") / "measurements.json"

    def load(self, targets: Sequence[str]) -> Mapping[str, Milliseconds]:
        """Return the current GPU's measurements, by key. Without a GPU, or if its compute capability is not among
        ``targets``, return those of GPUs with the target capability; {} if the file has several such GPU models."""
        here = has_gpu() and is_for_this_gpu(targets)
        name = torch.cuda.get_device_name() if here else ""
        rows = [row for row in self._read_rows() or () if row.gpu_and_versions[2:] == (LIBRARY, torch_release())]
        rows = [r for r in rows if (r.gpu == name if here else not targets or {r.capability} == {*targets})]
        if len({row.gpu for row in rows}) > 1:
            log.warning("%s has measurements of several GPU models that fit the target: none is used", self.path)
            return {}
        return {row.key: (row.engine_ms, row.torch_ms) for row in reversed(rows)}  # the first row of a key decides

    def save(self, measurements: Mapping[str, Milliseconds]) -> None:
        """Add measurements of the current GPU under keys that the file does not have yet."""
        place = torch.cuda.get_device_name(), current_capability(), LIBRARY, torch_release()
        try:
            if self.given is None:
                make_private_folder(self.path.parent)
            with filelock.FileLock(self.path.with_name(f".{self.path.name}.lock")):
                before = self._read_rows()
                if before is None:
                    return
                known = {row.key for row in before if row.gpu_and_versions == place}
                rows = [MeasurementRow(key, *place, *pair) for key, pair in measurements.items() if key not in known]
                table = MeasurementTable("pipeline measurements", 1, (*before, *rows)[-MOST:])
                with replace_file(self.path, permissions=MODE if self.given is None else 0o666) as file:
                    file.write(encode_json(codec.to_json(table, MeasurementTable)))
        except OSError as error:
            log.warning("the measured times of engines and PyTorch cannot be saved to %s: %s", self.path, error)

    def _read_rows(self) -> tuple[MeasurementRow, ...] | None:
        """Return the rows of the file: empty if there is no file, None if it cannot be read."""
        try:
            with open_private_file(self.path) if self.given is None else self.path.open("rb") as file:
                data = file.read(BYTES + 1)
            if len(data) > BYTES:
                raise ArtifactError(f"the file has more than {BYTES} bytes")
            table: MeasurementTable = codec.from_json(decode_json(data), MeasurementTable)
            if table.schema != 1:
                raise ArtifactError(f"the file has schema {table.schema}, and this version of pipeline reads schema 1")
            return table.rows
        except FileNotFoundError:
            return ()
        except (OSError, ArtifactError) as error:
            log.warning("%s is not a file of measurements (%s): delete it, or pass another path", self.path, error)
            return None


def torch_release() -> str:
    """Return torch's release without the suffix for the platform that it was built for (``+cu130``)."""
    return str(torch.__version__).partition("+")[0]


def measurement_store(settings: CompilationSettings) -> Measurements:
    """Return the store of measurements that the setting ``measurements`` selects."""
    chosen = settings.measurements
    if chosen is False:
        return Measurements()
    return MeasurementFile(None if chosen is True else Path(chosen).expanduser())
