"""What the table of dtypes refuses eager refuses on a GPU as well."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.aten.dtype_calls import NAMES, example, is_misfit, is_refused, variants

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_refuses_what_the_table_refuses(name: str) -> None:
    assert not is_refused(name, example(name), "cuda")
    for arguments in variants(name):
        dtypes = [v.dtype for v in tree_leaves(arguments) if isinstance(v, torch.Tensor)]
        if is_misfit(name, arguments) and set(dtypes[:5]) != {torch.float32}:  # biases of an LSTM may differ
            assert is_refused(name, arguments, "cuda"), dtypes
