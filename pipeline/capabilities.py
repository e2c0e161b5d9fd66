"""What the installed TensorRT can do, and since which version what was wrong is right."""

import re
from typing import Any, Literal

import attrs

Attention = Literal["none", "v1", "v2"]


@attrs.frozen
class Capabilities:
    """What a TensorRT can do: probed by name, minus features known to be broken in its flavour."""

    flavour: str
    version: str
    version_tuple: tuple[int, ...]
    plugins: bool
    attention: Attention
    attention_gqa_half: bool
    kv_cache_update: bool
    rotary_embedding: bool
    normalization_v2: bool
    cumulative: bool
    nonzero: bool
    strided_dilated_deconvolution: bool
    halves_after_products: bool
    every_bfloat16_convolution: bool
    int8_activations: bool
    quantization: bool
    code_convolutions: bool
    codes_beside_floats: bool
    lone_queries: bool
    turned_products: bool
    splits_sums: bool
    float32_sums: bool
    biases_before_relu: bool
    factors_of_products: bool
    fast_sums: bool
    runtime_config: bool
    compute_capabilities: tuple[str, ...]
    layer_kinds: frozenset[str]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _capability_name(member: str) -> str:
    """SM120 is written 12.0, as NVIDIA's tables write it."""
    return f"{member[2:-1]}.{member[-1]}"


def capabilities(bindings: Any) -> Capabilities:
    """Those of the TensorRT with these bindings."""
    network = bindings.INetworkDefinition
    flavour, version = str(bindings.__name__), _version(bindings.__version__)
    rtx = flavour == "tensorrt_rtx"
    targets = getattr(getattr(bindings, "ComputeCapability", None), "__members__", {})
    attention: Attention = "v2" if hasattr(network, "add_attention_v2") else "none"
    if attention == "none" and hasattr(network, "add_attention"):
        attention = "v1"
    return Capabilities(
        flavour=flavour,
        version=bindings.__version__,
        version_tuple=version,
        plugins=hasattr(network, "add_plugin_v3"),
        attention=attention,
        attention_gqa_half=attention != "none" and (not rtx or version >= (1, 6)),  # reported wrong before
        kv_cache_update=hasattr(network, "add_kv_cache_update"),
        rotary_embedding=hasattr(network, "add_rotary_embedding"),
        normalization_v2=hasattr(network, "add_normalization_v2"),
        cumulative=hasattr(network, "add_cumulative"),
        nonzero=not rtx,  # RTX: the network takes the layer, "no runners" at the build
        strided_dilated_deconvolution=not rtx,
        halves_after_products=not rtx or version >= (1, 6),  # garbage before, on an H200: `base.cast`, `impl.matmul`
        every_bfloat16_convolution=not rtx or version >= (1, 6),  # before, on an H200: "cuDNN graph compilation failed"
        int8_activations=not rtx,
        quantization=not rtx or version >= (1, 6),  # "cudaDeviceProfile" before, and no engine
        code_convolutions=not rtx or version >= (1, 7),  # before: none of INT8 by INT8, FP8 by FP8 without its scale
        codes_beside_floats=not rtx or version >= (1, 7),  # before: none of FP8, none of INT4 by float32 that runs
        lone_queries=not rtx,  # wrong for several batches, on an H200: `impl.attention`
        turned_products=not rtx or version >= (1, 6),  # of one batch for all before, on an H100: `impl.matmul.linear`
        splits_sums=not rtx,  # of products of few rows, over multiprocessors: `improvements.split_products`
        float32_sums=not rtx or version < (1, 6),  # of float16, on an H200: in float16 since, `impl.matmul`
        biases_before_relu=not rtx or version < (1, 6),  # of products, lost on 1.6.1, on an H100: `impl.activation`
        factors_of_products=not rtx or version >= (1, 6),  # lost before, on an H100: `impl.elementwise`
        fast_sums=rtx and version < (1, 5),  # over products with weights that are inputs: `impl.matmul`
        runtime_config=hasattr(bindings.ICudaEngine, "create_runtime_config"),
        compute_capabilities=tuple(_capability_name(name) for name in targets if name.startswith("SM")),
        layer_kinds=frozenset(bindings.LayerType.__members__),
    )
