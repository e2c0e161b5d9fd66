"""Steps of recurrent layers that are written out are not repeated in their kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pipeline
from benchmarks.kernels import CAPABILITY
from pipeline.trt import CAPABILITIES


@pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT tell nothing")
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_state_of_one_number_is_multiplied_as_others(kind: type[nn.RNNBase]) -> None:
    """Were its products elementwise, then each gate of each step would repeat the steps before: 7 MB for a GRU."""
    compile = pipeline.default(min_block_size=1, compute_capabilities=(CAPABILITY,))
    sizes = [compile(kind(3, n).eval(), args=(torch.randn(8, 2, 3),)).engines[0].nbytes for n in (1, 2)]
    assert sizes[0] < 1.5 * sizes[1]
