"""``python -m benchmarks.exporters [--every N] [TABLE …]``: architectures of the zoo exported by transformers' own
exporter (``dynamo``, ExportedProgram) and by ours, each run beside eager PyTorch; the last line counts."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.exporters import DynamoConfig, DynamoExporter

from benchmarks.zoo import architectures, first_line
from pipeline.compat.transformers.exporters import PipelineConfig, PipelineExporter

TABLES = ("text", "vision", "dense", "detection", "audio")
TOLERANCE = 1e-3
WAYS = {"dynamo": (DynamoExporter, DynamoConfig), "pipeline": (PipelineExporter, PipelineConfig)}


def error(found: object, expected: object) -> float:
    """The largest difference between the float tensors of two results, relative to the largest value."""
    pairs = zip(tree_leaves(found), tree_leaves(expected), strict=True)
    floats = [(a.double().cpu(), b.double()) for a, b in pairs if isinstance(b, torch.Tensor) and b.is_floating_point()]
    return max(
        (float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in floats if b.numel()), default=0.0
    )


def outcome(way: str, model: Any, inputs: dict[str, Any], expected: object) -> str:
    """``right``, or what is wrong: an error, or the exception with its first line."""
    exporter, config = WAYS[way]
    try:
        exported = exporter().export(model, copy.deepcopy(inputs), config())
        found = error(exported(**copy.deepcopy(inputs)), expected)
    except Exception as failure:
        cause = failure.__cause__ or failure
        return f"{type(cause).__name__}: {first_line(cause)}"
    return "right" if found <= TOLERANCE else f"error {found:.1e}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each architecture that either way does not export right, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth architecture (default: all)")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for architecture in [each for table in options.tables for each in architectures(table)][:: options.every]:
        case = architecture.case(torch.float32)
        if not isinstance(case.model, PreTrainedModel):
            continue
        inputs = dict(case.kwargs)
        with torch.no_grad():
            expected = case.model(**copy.deepcopy(inputs))
        ends = {way: outcome(way, case.model, inputs, expected) for way in WAYS}
        counts.update(["cases", *(way for way, end in ends.items() if end == "right")])
        counts.update(["both"] if {*ends.values()} == {"right"} else [])
        if {*ends.values()} != {"right"}:
            print(f"{architecture.name}: " + "; ".join(f"{way}: {end}" for way, end in ends.items()), flush=True)
    right = ", ".join(f"{way} {counts[way]}" for way in (*WAYS, "both"))
    print(f"{counts['cases']} cases; right: {right}")


if __name__ == "__main__":
    main()
