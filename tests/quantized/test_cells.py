"""The table of docs/quantization-forms.md, cell by cell: it is as the page has it, and numbers are those of eager."""

import pytest
import torch

import pipeline
from benchmarks.quantized_cells import FORMS, PAGE, Cell, Form, cells, given, outcome, page, validated
from pipeline.stages.unbuilt import unbuilt

pytest.importorskip("modelopt.torch.quantization")
pytest.importorskip("torchao.quantization.pt2e")

COMPILE = pipeline.default(compute_capabilities=("12.0",)).replace("build", unbuilt)
COMPARED = [row for row in cells() if row[0].eager]


def named(row: tuple[Form, str, bool]) -> str:
    """A cell's name."""
    form, operator, activations = row
    return f"{form.name} {form.type} {form.shares} {operator}{' both' * activations}"


def test_the_page_has_the_table() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), "run: python -m benchmarks.quantized_cells"


@pytest.mark.parametrize("row", COMPARED, ids=named)
def test_numbers_are_those_of_eager(row: tuple[Form, str, bool]) -> None:
    form, operator, activations = row
    record = validated(form, operator, activations)
    if record is None:
        return
    said = outcome(record)
    assert not said.startswith("numbers"), "weights were folded to numbers"
    model, x = Cell(operator, form, activations).eval(), given(operator)
    with torch.no_grad():
        wanted, got = model(x), COMPILE(model, args=(x,))(x)
    torch.testing.assert_close(got, wanted, rtol=2e-6, atol=2e-5)  # codes are eager's: sums in another order


def test_every_form_is_tried_with_every_operator() -> None:
    assert {form for form, _, _ in cells()} == set(FORMS)
    assert len(list(cells())) == len(FORMS) * 9
