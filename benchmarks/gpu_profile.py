"""``python -m benchmarks.gpu_profile``: the kernels that a call runs on this GPU, by method, dearest first.

It tells where an engine is slower than ``torch.compile``: PyTorch's profiler sees the kernels of both.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import evolve
from torch.profiler import ProfilerActivity, profile

from benchmarks.environment import Row
from benchmarks.gpu import MODELS, Plain
from benchmarks.gpu_runs import by_model
from benchmarks.methods import METHODS, Call, Clock
from examples.models import full

CALLS, SHOWN = 20, 12
COMPARED = ("torch.compile", "raw engine")

ROLES = {
    "attention": re.compile(r"flash|fmha|mha|attention", re.I),
    "product": re.compile(r"gemm|xmma|nvjet|cutlass|conv|cudnn|wgmma|gemv|corr", re.I),
}
"""What a kernel does, by its name; the rest is ``other``: elementwise, reductions, copies."""


def role(kernel: str) -> str:
    """``attention``, ``product`` (of matrices, or a convolution) or ``other``."""
    return next((name for name, pattern in ROLES.items() if pattern.search(kernel)), "other")


def kernels(call: Call) -> list[tuple[str, float]]:
    """Every kernel of ``CALLS`` calls: its name and microseconds."""
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    return [(e.name, e.device_time_total) for e in seen.events() if str(e.device_type) == "DeviceType.CUDA"]


def summary(found: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """A call's kernels and microseconds, by role and for the dearest kernels."""
    times, counts, roles, role_counts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for name, taken in found:
        for counter, key, value in (times, name, taken), (counts, name, 1), (roles, role(name), taken):
            counter[key] += value  # type: ignore[assignment]
        role_counts[role(name)] += 1
    return {
        "kernels": round(sum(counts.values()) / CALLS, 1),
        "gpu_us": round(sum(times.values()) / CALLS, 1),
        "roles": {r: {"us": round(t / CALLS, 1), "kernels": role_counts[r] / CALLS} for r, t in roles.most_common()},
        "dearest": [
            {"kernel": name[:100], "us": round(taken / CALLS, 1), "times": counts[name] / CALLS}
            for name, taken in times.most_common(SHOWN)
        ],
    }


def measured(model: str, batch: int, methods: Iterable[str] = COMPARED) -> list[dict[str, Any]]:
    """A row for each method, in float16."""
    case = full(model, torch.float16)
    case = evolve(case, model=Plain(case.model).cuda().eval())
    inputs = {name: value.cuda() for name, value in case.inputs(batch=batch).items()}
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        return [
            {"model": model, "batch": batch, "method": each}
            | summary(kernels(METHODS[each](case.model, inputs, Clock())))
            for each in methods
        ]


def printed(model: str, batch: int) -> list[Row]:
    """The rows of a model, printed as lines of JSON."""
    print(*map(json.dumps, found := measured(model, batch)), sep="\n", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints; 2 where there is no GPU."""
    return 2 if by_model("gpu_profile", "the kernels of a call on this GPU", MODELS, printed, argv) is None else 0


if __name__ == "__main__":
    sys.exit(main())
