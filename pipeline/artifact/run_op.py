"""``pipeline::run``, the operator that calls a compiled program in a graph.
``import pipeline`` defines the operator; the first call imports its implementation."""

from __future__ import annotations

from collections.abc import Sequence

import torch


@torch.library.custom_op("pipeline::run", mutates_args=())
def run(
    program: torch.Tensor | None, inputs: Sequence[torch.Tensor], sizes: Sequence[int], facts: str
) -> list[torch.Tensor]:
    """Run a compiled program on tensor arguments (``inputs``) and int arguments (``sizes``); return its result tensors.
    ``program``: bytes of the saved program in a graph of torch.export, which another process may run; else None.
    ``facts``: JSON with the key of the compiled module in this process, and the shapes of inputs and results."""
    from pipeline.artifact import program_op

    return program_op.run(program, inputs, sizes, facts)


@run.register_fake
def _fake_run(
    program: torch.Tensor | None, inputs: Sequence[torch.Tensor], sizes: Sequence[int], facts: str
) -> list[torch.Tensor]:
    """Return uninitialized results, of the shapes in ``facts``, when a call is traced; parameters as in `run`."""
    from pipeline.artifact import program_op

    return program_op.empty_results(inputs, sizes, facts)
