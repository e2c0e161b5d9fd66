"""``python -m benchmarks.known_issues``: make docs/known-issues.md of the table of kernel faults."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.markdown import table
from pipeline.quirks import QUIRKS

PAGE: Final = Path(__file__).parent.parent / "docs" / "known-issues.md"
HEAD = """# Known issues of TensorRT-RTX

Kernel faults that we measured, and what is written instead. This page is made of `pipeline/quirks/table.py` by
`python -m benchmarks.known_issues`. What a version does wrongly in *your* model, [`pipeline.verify`](verification.md)
finds.

The stage `avoid_faults` marks the nodes of a program at which a fault is avoided: `print(compiled.partitioned)` lists
the marks. An experiment leaves a row out, or assumes it:

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
    """The page's text."""
    heads = ["fault", "versions", "GPUs", "what brings it about", "what is written instead", "how it shows", "test"]
    rows = [[f"`{q.id}`: {q.fault}", q.versions, q.gpus, q.trigger, q.instead, q.seen, f"`{q.test}`"] for q in QUIRKS]
    return HEAD + "\n".join(table(heads, rows)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
