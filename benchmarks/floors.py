"""``python -m benchmarks.floors [RESULTS ...]``: the least time that a GPU needs for the rows of ``benchmarks.real``.

The floor is the longer of two times: that of the model's products at the speed of one large matmul, and that of its
weights, inputs and outputs, each read or written once, at the speed of a copy. Rows have the work; those without get it
from a model without data, for which no GPU is needed. Speeds are measured where rows are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from benchmarks.environment import RESULTS
from benchmarks.real_models import rows
from pipeline.cli.usage import first_line

SIZE: Final = 8192
"""Rows, terms and columns of the matmul that gives the speed of products."""
COPIED: Final = 1 << 30
"""Bytes of the copy that gives the speed of memory."""
AGAIN: Final = 10
"""Calls that are timed together."""


def _attention(packet: Any) -> Callable[..., int]:
    """The formula of an attention for torch's counter, which counts all pairs also where half are seen."""
    place = [argument.name for argument in packet.default._schema.arguments].index("is_causal")

    def flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *rest: Any, **named: Any) -> int:
        causal = named.get("is_causal", rest[place - 3] if len(rest) > place - 3 else False)
        return sdpa_flop_count(query, key, value) // (2 if causal else 1)

    return flops


KINDS: Final = ("efficient_attention", "flash_attention", "cudnn_attention", "flash_attention_for_cpu")
ATTENTION: Final = {
    packet: _attention(packet) for packet in (getattr(torch.ops.aten, f"_scaled_dot_product_{kind}") for kind in KINDS)
}


def work(model: torch.nn.Module, call: Callable[[], object], inputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """What a call has to do at least: its products, and the bytes of weights, inputs and outputs. Of tables that only
    embeddings read, rows are read, and nothing is counted."""
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter, torch.no_grad():
        outputs = call()
    read = {id(p): p for m in model.modules() if not isinstance(m, torch.nn.Embedding) for p in m.parameters(False)}
    moved = [*read.values(), *model.buffers(), *inputs.values(), *tree_leaves(outputs)]
    size = sum(each.nbytes for each in moved if isinstance(each, torch.Tensor))
    return {"gflop": round(counter.get_total_flops() / 1e9, 2), "mb": round(size / 1e6, 2)}


def speeds(dtype: torch.dtype) -> dict[str, float]:
    """What this GPU reaches: TFLOP a second in a large matmul, and GB a second in a copy, read and written."""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=dtype) for _ in range(2))
    source, target = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    matmul, copy = _seconds(lambda: torch.mm(a, b)), _seconds(lambda: target.copy_(source))
    return {"tflop_s": round(2e-12 * SIZE**3 / matmul, 1), "copy_gb_s": round(2e-9 * COPIED / copy, 1)}


def _seconds(call: Callable[[], object]) -> float:
    """The least seconds of a call among several turns."""
    found = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(AGAIN):
            call()
        end.record()
        end.synchronize()
        found.append(1e-3 * start.elapsed_time(end) / AGAIN)
    return min(found)


def floor_ms(row: Mapping[str, Any], reached: Mapping[str, float] | None = None) -> float | None:
    """The floor of a row in milliseconds; None where its work or the GPU's speeds are not known, or where data decide
    which weights are read."""
    done, reached = row.get("work"), row.get("speeds", reached)
    if not done or not reached or row.get("routed"):
        return None
    return max(float(done["gflop"] / reached["tflop_s"]), float(done["mb"] / reached["copy_gb_s"]))


def complete(path: Path) -> list[str]:
    """Add the work to rows of a result that lack it; return the models that cannot be made here."""
    data, known, absent = json.loads(path.read_text(encoding="utf-8")), {each.name: each for each in rows()}, set[str]()
    found: dict[str, dict[str, float]] = {}
    for row in data["real"]:
        name, dtype, made = row["name"], row["dtype"], known.get(row["name"])
        if "work" in row or "ms" not in row:
            continue
        if made is None or not made.available:
            absent.add(name)
            continue
        if (key := f"{name} {dtype}") not in found:
            model, inputs, mode = made.faked("cpu", getattr(torch, dtype))
            try:
                with mode:
                    found[key] = work(model, lambda: model(**inputs), inputs)  # noqa: B023  # called at once
            except Exception as error:
                print(f"{key}: {first_line(error)}", file=sys.stderr)
                found[key] = {}
            print(key, found[key], flush=True)
        if found[key]:
            row["work"] = found[key]
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return sorted(absent)


def main(argv: Sequence[str] | None = None) -> int:
    """Complete the results that are named; by default those of ``benchmarks.real``."""
    named = [Path(each) for each in (sys.argv[1:] if argv is None else argv)] or sorted(RESULTS.glob("real-*.json"))
    for path in named:
        if absent := complete(path):
            print(f"{path}: without work, since the library is not installed: {', '.join(absent)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
