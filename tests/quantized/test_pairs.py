"""What a plan shows of each pair; plans are built where the library builds quantized networks."""

import pytest
import torch
from torch import nn

import pipeline
from pipeline.network.description import Layer, Network, Tensor
from pipeline.network.pairs import find_quantized_pairs
from pipeline.trt import CAPABILITIES

builds = pytest.mark.skipif(not CAPABILITIES.quantization, reason="TensorRT-RTX builds quantized networks from 1.6 on")


def layer(kind: str, name: str, inputs: tuple[str, ...], dtype: str) -> Layer:
    """A layer of one output that has its name."""
    return Layer(kind, name, inputs, (Tensor(name, dtype, (4, 4)),))


NETWORK = Network(
    "engine",
    (Tensor("x", "float16", (4, 4)),),
    (Tensor("y", "float16", (4, 4)),),
    (
        layer("CONSTANT", "codes", (), "int8"),
        layer("CONSTANT", "scale", (), "float32"),
        layer("DEQUANTIZE", "weight", ("codes", "scale"), "float16"),
        layer("QUANTIZE", "rounded", ("x", "scale"), "int8"),
        layer("DEQUANTIZE", "back", ("rounded", "scale"), "float16"),
        layer("MATRIX_MULTIPLY", "y", ("back", "weight"), "float16"),
    ),
)
KINDS = {"a": "int8", "b": "int8", "h": "half"}
TYPES = "".join(f'  tensor={{ name="{name}" type={kind} }}\n' for name, kind in KINDS.items()).encode()
BOTH = b'  fully_connected={ name="y" input={"a" "b" "h" } layers="y\x1fweight\x1fback" }\n'
INSIDE = b'  runtime_fusion={ name=__myl_CastMulFc input_args={ "h" "b" } layers="weight\x1fy" }\n'
PLAIN = b'  fully_connected={ name="y" input={"h" "h" } layers="y" }\n'
APART = b'  function={ name=__myl_CastMul input_args={ "b" } layers="weight" }\n' + PLAIN
BUILT = b'  fully_connected={ name="y" input={"h" "h" } layers="y\x1fweight" }\n'


def plan(program: bytes) -> bytes:
    """A plan's words."""
    return b"\x01\x02" + TYPES + b"main {\n" + program + b"\0weights"


@pytest.mark.parametrize(
    ("program", "fused", "words"),
    [
        (BOTH, [True, True], "int8 by int8"),
        (INSIDE, [True, False], "dequantizes it inside"),
        (APART, [False, False], "a kernel of its own"),
        (BUILT, [False, False], "during the build"),
    ],
)
def test_what_became_of_a_weight_and_an_activation(program: bytes, fused: list[bool], words: str) -> None:
    found = find_quantized_pairs(NETWORK, plan(program))
    assert [(pair.layer, pair.of) for pair in found] == [("weight", "weight"), ("back", "activation")]
    assert [pair.fused for pair in found] == fused
    assert words in found[0].why


def test_a_plan_without_words_tells_nothing() -> None:
    assert [pair.fused for pair in find_quantized_pairs(NETWORK, b"weights")] == [None, None]


class Layers(nn.Module):
    """Linear layers of some size."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(512, 1024), nn.Linear(1024, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of 512 for rows of 512."""
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


@builds
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_weights_and_activations_are_multiplied_as_codes(kind: str) -> None:
    x = torch.randn(32, 512)
    stage = pipeline.quantize(kind, kind, [x])  # type: ignore[arg-type]
    compile = pipeline.default(require_fused_quantization=True, compute_capabilities=("8.9",))
    compiled = compile.insert(stage, before="decompose")(Layers().eval(), args=(x,))
    assert len(compiled.quantization) == 4
    assert all(pair.fused for pair in compiled.quantization)
    assert "fused" in compiled.report()


@builds
@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int4", 4)])
def test_engines_have_the_bits_of_their_weights(kind: str, bits: int) -> None:
    layers = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(2)]).eval().half()
    stage = pipeline.quantize(kind)  # type: ignore[arg-type]
    compile = pipeline.default(require_fused_quantization=True, compute_capabilities=("8.9",))
    compiled = compile.insert(stage, before="decompose")(layers, args=(torch.randn(64, 2048).half(),))
    assert compiled.engines[0].nbytes <= 1.1 * 2 * 2048 * 2048 * bits / 8


@builds
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_what_a_version_cannot_read_is_told(kind: str, dtype: torch.dtype) -> None:
    """1.6.1 keeps FP8 beside floats as floats, and an H200 runs no product of it that reads INT4 beside float32."""
    stage = pipeline.quantize(kind)  # type: ignore[arg-type]
    compile = pipeline.default(compute_capabilities=("8.9",)).insert(stage, before="decompose")
    compiled = compile(Layers().eval().to(dtype), args=(torch.randn(32, 512).to(dtype),))
    old = CAPABILITIES.version_tuple < (1, 7) and (kind, dtype) != ("int4", torch.float16)
    assert [pair.fused for pair in compiled.quantization] == [not old] * 2
    said = {"fp8": "from 1.7 on", "int4": "does not run on every GPU"}[kind]
    assert [said in pair.why and "MATRIX_MULTIPLY" in pair.why for pair in compiled.quantization] == [old] * 2


@pytest.mark.skipif(CAPABILITIES.quantization, reason="this library builds quantized networks")
def test_the_version_to_install_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.converters import quantized

    monkeypatch.setattr(quantized, "CAPABILITIES", CAPABILITIES)
    compile = pipeline.default().insert(pipeline.quantize("int8"), before="decompose")
    x = torch.randn(4, 512)
    model = Layers().eval()
    compiled = compile(model, args=(x,))
    refused = [f for f in compiled.coverage.fallback if f.target == "pipeline.dequantize.default"]
    assert len(refused) == 2
    assert "does not support quantized networks" in refused[0].reason
    assert "tensorrt-rtx>=1.6.1" in refused[0].hint
    assert float((compiled(x) - model(x)).norm() / model(x).norm()) < 0.02
