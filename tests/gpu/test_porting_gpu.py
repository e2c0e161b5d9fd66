"""The pieces of ``examples/porting`` on a GPU: engines give what eager gives there, with the model on it."""

from __future__ import annotations

import pytest
import torch

import pipeline
from pipeline.compat.torch_tensorrt import DYNAMO_CONVERTERS
from tests.compat.test_porting import PIECES
from tests.gpu.refits import needs_refit

pytestmark = pytest.mark.gpu

TF32 = 2e-3
"""How far products of float32 are from float32: engines use TF32."""


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_runs_in_an_engine(name: str) -> None:
    piece = PIECES[name]
    torch.manual_seed(0)
    model, x = piece.model().eval().cuda(), piece.x.cuda()
    registry = DYNAMO_CONVERTERS.register(piece.converter)
    compiled = pipeline.default(registry=registry, require_full_compilation=True)(model, args=(x,))
    torch.testing.assert_close(compiled.module(executor="tensorrt")(x), model(x), rtol=TF32, atol=TF32)


@pytest.mark.parametrize("name", [name for name, piece in PIECES.items() if piece.weights])
@needs_refit
def test_a_piece_with_weights_is_refitted_in_place(name: str) -> None:
    piece = PIECES[name]
    torch.manual_seed(0)
    model, other, x = piece.model().eval().cuda(), piece.model().eval().cuda(), piece.x.cuda()
    compile = pipeline.default(registry=DYNAMO_CONVERTERS.register(piece.converter), immutable_weights=False)
    refitted = pipeline.refit_module_weights(compile(model, args=(x,)), other)
    torch.testing.assert_close(refitted.module(executor="tensorrt")(x), other(x), rtol=TF32, atol=TF32)
