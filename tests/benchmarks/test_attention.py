"""The benchmark of attention: its forms compute one function, and its rows become a table."""

from __future__ import annotations

import pytest
import torch

from benchmarks import attention, environment, tables


def test_forms_of_attention_become_tables() -> None:
    row = {"mask": "none", "batch": 1, "sequence": 128, "kernels": 5, "relative_error": 1e-3, "gpu_ms": 0.25}
    rows = [{**row, "form": "layer"}, {**row, "form": "spelled out", "mask": "causal"}]
    text = tables.attention({**environment.environment(), "attention": rows})
    assert "| 1 x 128 | none | 0.250 (5), 1.0e-03 |  |" in text
    assert "| 1 x 128 | causal |  | 0.250 (5), 1.0e-03 |" in text


@pytest.mark.parametrize("kind", attention.MASKS)
def test_forms_of_attention_are_one_function(kind: str) -> None:
    x, mask = torch.randn(2, 8, attention.HEADS * attention.WIDTH), attention.mask_of(kind, 2, 8)
    torch.manual_seed(0)
    models = [attention.Attentions(form, kind == "causal") for form, _ in attention.FORMS.values()]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
        with torch.no_grad():
            torch.testing.assert_close(model(x, mask), models[0](x, mask))
