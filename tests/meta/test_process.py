"""What a test leaves changed is found, and put back."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.meta.process import PLACES, kept


def test_what_stays_changed_is_named_and_put_back() -> None:
    with pytest.raises(AssertionError, match=r"logging\.disable.*default dtype"), kept():
        logging.disable(logging.WARNING)
        torch.set_default_dtype(torch.float64)
    assert logging.getLogger("pipeline").isEnabledFor(logging.WARNING)
    assert torch.get_default_dtype() is torch.float32


def test_what_is_put_back_is_no_fault() -> None:
    with kept():
        logging.getLogger("pipeline").setLevel(logging.ERROR)
        logging.getLogger("pipeline").setLevel(logging.NOTSET)


@pytest.mark.parametrize("name", PLACES)
def test_each_can_be_read_and_set(name: str) -> None:
    read, put = PLACES[name]
    put(read())
