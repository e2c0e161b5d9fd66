"""`verify` and `bisect` where engines run: models compiled on the GPU prove themselves, a wrong converter is found."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from examples.models import SMALL, small
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.trt import trt
from tests.verification.test_module_comparison import Otherwise

pytestmark = pytest.mark.gpu

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_example_models_prove_themselves(name: str, dtype: torch.dtype) -> None:
    case = small(name, dtype)
    kwargs = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in case.kwargs.items()}
    compile = pipeline.default() | pipeline.verify()
    agreement = compile(case.model.cuda(), (), kwargs, case.dynamic_shapes).agreement
    assert agreement.executor == "tensorrt" and agreement.gpu == torch.cuda.get_device_name()
    assert agreement.tf32 == (os.environ.get("NVIDIA_TF32_OVERRIDE") != "0")
    assert not agreement.skipped and len(agreement.sizes) == 3
    assert not agreement.module and 2 * sum(row.source == "module" for row in agreement.rows) == len(agreement.rows)


@pytest.mark.parametrize(("device", "sizes"), [("cuda", 3), ("cpu", 1)])
def test_a_graph_that_differs_from_its_module_is_named_on_the_modules_own_device(device: str, sizes: int) -> None:
    model, dims = Otherwise().eval().to(device), ({0: Dim("batch", min=1, max=5)},)
    with pytest.raises(pipeline.AgreementError, match="captured graph differs from the module") as caught:
        (pipeline.default() | pipeline.verify())(model, (torch.randn(2, 4, 8, device=device),), dynamic_shapes=dims)
    agreement: Any = caught.value.agreement
    assert agreement.executor == "tensorrt" and agreement.failures == agreement.differences
    assert [row.output for row in agreement.differences] == ["output.0"] * sizes


@dynamo_tensorrt_converter(aten.tanh.default, supports_dynamic_shapes=True, priority=pipeline.ConverterPriority.HIGH)
def wrong_tanh(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """tanh(Tensor self) -> Tensor, computed as something else"""
    return ctx.add(name, "activation", args[0], trt.ActivationType.SOFTSIGN).get_output(0)


def tanh_between_products() -> Any:
    """A model whose output a wrong tanh changes by more than TF32 may, on the GPU, with its inputs."""
    torch.manual_seed(0)
    layers = nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 12)
    return nn.Sequential(*layers).eval().cuda(), (3 * torch.randn(4, 12).cuda(),), None, ({0: Dim("batch", max=8)},)


def wrong() -> pipeline.Pipeline:
    return pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(wrong_tanh))


def test_a_wrong_engine_is_found_in_few_builds_and_its_script_shows_it() -> None:
    model, args, kwargs, dims = tanh_between_products()
    found = pipeline.bisect(model, args, kwargs, dims, compile=wrong())
    assert found.targets == ("aten.tanh.default",) and found.complete
    operators = len(wrong()(model, args, kwargs, dims).coverage.converted)
    assert found.builds <= math.log2(operators) + 4
    script = found.script.replace("pipeline.default()", "compile_wrongly()")
    with pytest.raises(SystemExit) as ended:
        exec(compile(script, "fault.py", "exec"), {"__name__": "__main__", "compile_wrongly": wrong})
    assert ended.value.code == 1


def test_a_wrong_engine_is_healed() -> None:
    model, args, kwargs, dims = tanh_between_products()
    made = (wrong() | pipeline.verify("heal"))(model, args, kwargs, dims)
    assert made.agreement.holds and made.agreement.executor == "tensorrt"
    assert [(row.target, row.action) for row in made.coverage.healed] == [
        ("aten.tanh.default", "lowered by another converter")
    ]
    with torch.no_grad():
        torch.testing.assert_close(made(*args), model(*args), rtol=5e-3, atol=5e-3)


def test_nothing_is_found_in_what_is_right() -> None:
    assert pipeline.bisect(nn.Linear(8, 8).eval().cuda(), (torch.randn(2, 8, device="cuda"),)).nodes == ()
