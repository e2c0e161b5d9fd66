"""Operators on as many rows as data says: torch asks some whether there are none, or one, to leave work out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pipeline
from pipeline.stages import unbuilt
from tests.shapes.test_sizes import Calls

X: Final = torch.linspace(-1, 2, 24).reshape(6, 4)

FORMS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "roll": lambda x: x.roll(1, 0),
    "batch norm": lambda x: functional.batch_norm(x, torch.ones(4, device=x.device), torch.ones(4, device=x.device)),
    "distances": lambda x: torch.cdist(x, x),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "trapezoids": lambda x: torch.trapezoid(x, dim=0),
    "a product over rows": lambda x: torch.tensordot(x, x, ([0], [0])),
}
"""Right for no rows as well."""
OF_SOME: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "logsumexp": lambda x: x.logsumexp(0),
    "differences": lambda x: x.diff(dim=0),
    "local response norm": lambda x: functional.local_response_norm(x.mT[None], 2),
}
"""For no rows the program has no size, and says so."""


def calls() -> Iterator[Tensor]:
    """Inputs of which three, two and one row are selected, and all."""
    yield X
    yield X.flip(0)[2:].repeat(2, 1)[:6]
    yield torch.cat([-X.abs() - 1, X[-1:]])[1:]
    yield X.abs() + 1


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("form", [*FORMS, *OF_SOME])
def test_all_the_work_is_done(form: str, device: str | None) -> None:
    function = (FORMS | OF_SOME)[form]
    model = Calls(lambda x: function(x[x[:, 0] > 0]))
    compiled = pipeline.default(min_block_size=1, device=device).replace("build", unbuilt)(model.eval(), (X,))
    run = compiled.module("reference")
    for x in calls():
        torch.testing.assert_close(run(x), model(x))
    nothing = -X.abs() - 1
    if form in FORMS:
        torch.testing.assert_close(run(nothing), model(nothing))
    else:
        with pytest.raises(pipeline.ExecutionError, match=r"(?s)data-dependent size 0;.*does not accept a smaller"):
            run(nothing)


def test_a_model_that_asks_for_their_number_is_refused_or_decides_by_the_example() -> None:
    def asks(x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return rows.sum(0) if rows.shape[0] > 1 else x.sum(0)

    compile = pipeline.default(min_block_size=1).replace("build", unbuilt)
    with pytest.raises(pipeline.CaptureError, match=r"test_rows_of_data.py:\d+, return rows.sum"):
        compile(Calls(asks).eval(), (X,))
    by_example = pipeline.default(min_block_size=1, decisions="example").replace("build", unbuilt)
    run = by_example(Calls(asks).eval(), (X,)).module("reference")
    torch.testing.assert_close(run(X), asks(X))
    with pytest.raises(pipeline.DecisionError):
        run(-X.abs() - 1)
