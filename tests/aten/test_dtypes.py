"""What the table of dtypes refuses eager refuses too, and what eager refuses either the table does or torch's fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.aten.dtype_calls import NAMES, example, is_misfit, is_refused, target, variants


def fakes_refuse(name: str, arguments: list[Any]) -> bool:
    """Whether torch.export refuses the call by itself."""
    with FakeTensorMode() as mode:
        try:
            target(name)(*tree_map(lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v, arguments))
        except Exception:
            return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_eager_takes_the_example(name: str) -> None:
    assert not is_refused(name, example(name))
    assert not is_misfit(name, example(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_table_refuses_what_eager_refuses_and_no_more(name: str) -> None:
    for arguments in variants(name):
        dtypes = [v.dtype for v in tree_leaves(arguments) if isinstance(v, torch.Tensor)]
        if is_misfit(name, arguments):
            assert is_refused(name, arguments) or set(dtypes[:5]) == {torch.float32}, (
                dtypes
            )  # biases of an LSTM may differ
        elif is_refused(name, arguments):
            biased = name.startswith("conv") and dtypes[0] == dtypes[1]  # which biases are taken differs by device
            assert fakes_refuse(name, arguments) or biased, dtypes
