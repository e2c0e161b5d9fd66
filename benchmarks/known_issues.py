"""``python -m benchmarks.known_issues``: generate docs/known-issues.md from the table of kernel bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.markdown import filled
from pipeline.quirks import QUIRKS, Quirk

PAGE: Final = Path(__file__).parent.parent / "docs" / "known-issues.md"
HEAD = """# Known issues of TensorRT-RTX

After this page you know which bugs we measured in TensorRT-RTX's kernels, what triggers each bug, and how `pipeline`
works around it. `python -m benchmarks.known_issues` generates the page from `pipeline/quirks/table.py`. To find wrong
results in *your* model, use [`pipeline.verify`](verification.md).

Workarounds name modules of the package `pipeline`. Many use a *barrier*: a cheap layer (mostly the maximum of a tensor
and itself) that keeps TensorRT from fusing the layers before and after it. "Half precision" is float16 or bfloat16.

The stage `avoid_faults` marks each node that needs a workaround; `print(compiled.partitioned)` lists the marks. For
experiments, `quirks.without(…)` switches workarounds off by the bugs' ids, and `quirks.assume(…)` applies them with a
TensorRT version that does not have the bug:

```python
import torch
import pipeline
from pipeline import quirks

layer, x = torch.nn.Softmax(-1), torch.randn(4, 8)
with quirks.without("broadcast-in-reductions", "padded-zeros"), quirks.assume("biases-of-matmuls"):
    converted = pipeline.default().until("convert")(layer, args=(x,))
```
"""


def page() -> str:
    """Return the page's text: a section for each bug."""
    return "\n".join([HEAD, *map(_section, QUIRKS)])


def _section(quirk: Quirk) -> str:
    """Return the bug's section: the versions and GPUs that have the bug, its trigger and its workaround."""
    versions = "all versions of TensorRT-RTX" if quirk.versions == "all" else f"TensorRT-RTX {quirk.versions}"
    gpus = quirk.gpus.replace("(9.0)", "(compute capability 9.0)")
    parts = [
        f"{quirk.fault} Affected: {versions}; measured on: {gpus}. Trigger: {quirk.trigger}.",
        f"Workaround: {quirk.instead.replace('a barrier ', 'a barrier (a layer that prevents fusion) ')}.",
        f"How to recognize it: {quirk.seen}." if quirk.seen else "",
        f"Test: `{quirk.test}`.",
    ]
    return f"## {quirk.id}\n\n{filled(' '.join(filter(None, parts)))}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
