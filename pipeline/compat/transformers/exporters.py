"""Register this package with transformers' exporters (``transformers.exporters``); importing this module is enough."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.utils._pytree import tree_map_only
from transformers.exporters.auto import register_backend
from transformers.exporters.configs import DynamoConfig
from transformers.exporters.exporter_dynamo import DynamoExporter
from transformers.exporters.metadata import ExportMetadata, load_treespec
from transformers.exporters.runners.base import ModelRunner

from pipeline.artifact.load import load
from pipeline.aten.types import Argument
from pipeline.compiled import Compiled, Executor
from pipeline.defaults import compile

FORMAT: Final = "pipeline"


@dataclass
class PipelineConfig(DynamoConfig):
    """The configuration of an export: transformers' ``DynamoConfig``, ``precision`` as in `pipeline.compile`, and the
    fields of `pipeline.CompilationSettings` that differ from their defaults."""

    export_format: Argument = FORMAT
    precision: str | None = None
    settings: Mapping[str, Argument] | None = None


class PipelineExporter(DynamoExporter):
    """A transformers exporter that captures a model with transformers' patches and compiles it; `ExportedModel` saves
    the result as ``.trtp``."""

    export_format: Argument = FORMAT
    config_class = PipelineConfig
    program_suffix = ".trtp"

    def export_program(
        self, model: Argument, sample_inputs: MutableMapping[str, Argument], config: Argument
    ) -> tuple[Argument, ExportMetadata]:
        """Compile a model; return the program, and the metadata that transformers records about its export."""
        exported, metadata = super().export_program(model, sample_inputs, config)
        return compile(exported, precision=config.precision, **(config.settings or {})), metadata

    @classmethod
    def save_program(cls, program: Argument, path: str | os.PathLike[str]) -> None:
        program.save(path)

    @classmethod
    def load_program(cls, path: str | os.PathLike[str]) -> Argument:
        return load(path)


class PipelineRunner(ModelRunner):
    """A transformers runner for a compiled program: it is called with the arguments of the model's ``forward``.
    ``executor`` is as for `Compiled.module`."""

    executor: Executor | None = None

    def __init__(self, program: Compiled, metadata: ExportMetadata, device: torch.device) -> None:
        super().__init__(metadata)
        self.module, self._device = program.module(self.executor), device
        self._order = load_treespec(str(metadata.in_spec)).child(1).context

    @property
    def device(self) -> torch.device:
        return self._device

    @classmethod
    def from_program(cls, program: Compiled, metadata: ExportMetadata, device: Argument = None) -> PipelineRunner:
        """Return a runner whose results are on ``device``; None means the GPU, or the CPU if there is no GPU."""
        default = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(program, metadata, torch.device(device or default))

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Argument) -> Argument:
        """Run the program on ``kwargs``, moved to the runner's device; the ``share_`` arguments have no effect."""
        given = {**self.metadata.in_constants, **kwargs}
        ordered = {name: given[name] for name in self._order if name in given}
        return self.module(**tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device), ordered))


register_backend(PipelineExporter, PipelineRunner)
