"""Serve ``model.trtp``, a saved program in this file's folder, as a model of NVIDIA Triton's Python backend.
``pipeline serve-config`` copies this file to a model repository. ``max_batch_size`` in config.pbtxt enables batches."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import torch
import triton_python_backend_utils as pb_utils
from torch.utils import dlpack

from pipeline.artifact.load import load
from pipeline.artifact.named_io import called_by_name, inputs_of
from pipeline.artifact.serving import sent, taken
from pipeline.aten.types import Leaf


class TritonPythonModel:
    """An instance of the model in Triton; Triton requires this class name and these methods."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the program, on the instance's GPU or else on the CPU reference executor."""
        config = json.loads(args["model_config"])
        self.batched = int(config["max_batch_size"]) > 0
        self.outputs = [output["name"] for output in config["output"]]
        operators = config.get("parameters", {}).get("ALLOW_OPERATORS", {}).get("string_value", "")
        on_gpu = args["model_instance_kind"] == "GPU"
        self.device = int(args["model_instance_device_id"]) if on_gpu else -1
        with torch.cuda.device(self.device):  # -1 changes nothing
            self.compiled = load(Path(__file__).with_name("model.trtp"), operators.split())
            self.module = self.compiled.module("tensorrt" if on_gpu else "reference")
        self.inputs = inputs_of(self.compiled.program)

    def execute(self, requests: list[Leaf]) -> list[Leaf]:
        """Return a response for each request, in order."""
        responses: list[Leaf] = []
        for _, group in groupby(((request, self._inputs_of(request)) for request in requests), self._batch_key):
            rows = [values for _, values in group]
            try:
                responses += [pb_utils.InferenceResponse(self._to_triton(found)) for found in self._outputs_of(rows)]
            except Exception as error:
                failed = pb_utils.TritonError(f"{type(error).__name__}: {error}")
                responses += [pb_utils.InferenceResponse([], failed) for _ in rows]
        return responses

    def finalize(self) -> None:
        del self.module, self.compiled

    def _inputs_of(self, request: Leaf) -> dict[str, Leaf]:
        given = {port.name: pb_utils.get_input_tensor_by_name(request, port.name) for port in self.inputs}
        return {port.name: taken(port, dlpack.from_dlpack(given[port.name].to_dlpack())) for port in self.inputs}

    def _batch_key(self, row: tuple[Leaf, dict[str, Leaf]]) -> Leaf:
        """Return a key, equal for requests that can be batched together. ``row``: a request and its inputs by name."""
        request, values = row
        return [v.shape[1:] for v in values.values()] if self.batched else id(request)

    def _outputs_of(self, rows: list[dict[str, Leaf]]) -> list[dict[str, Leaf]]:
        """Run the program once on all requests, joined to a batch; return each request's outputs by name."""
        with torch.cuda.device(self.device):
            if len(rows) == 1:
                return [called_by_name(self.compiled.program, self.module, rows[0])]
            counts = [next(iter(row.values())).shape[0] for row in rows]
            joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
            found = called_by_name(self.compiled.program, self.module, joined)
            parts = {name: value.split(counts) for name, value in found.items()}
            return [{name: part[i] for name, part in parts.items()} for i in range(len(rows))]

    def _to_triton(self, found: dict[str, Leaf]) -> list[Leaf]:
        """Convert the outputs ``found`` for a request, by name, to Triton's tensors, in the order of config.pbtxt."""
        rows = ((name, sent(found[name])) for name in self.outputs)
        return [
            pb_utils.Tensor(name, value.numpy())
            if value.dtype == torch.bool
            else pb_utils.Tensor.from_dlpack(name, value.__dlpack__())
            for name, value in rows
        ]
