"""Describe whether quantize and dequantize nodes are fused into a matmul or convolution (`Compiled.quantization`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pipeline.aten.naming import node_of
from pipeline.network.description import Network
from pipeline.network.pairs import Pair

_QUANTIZES = frozenset({"QUANTIZE", "DYNAMIC_QUANTIZE"})
_SAID = {True: "fused", False: "not fused", None: "not known"}


def fusions(networks: Iterable[Network], pairs: Iterable[Pair]) -> Mapping[tuple[str, str], str]:
    """Return as text, by engine and node, whether the quantized weight or activation is fused into a matmul or
    convolution; nodes that neither quantize nor dequantize are left out.

    Args:
        networks: the engines' networks.
        pairs: the fusions that the plans show, a row for each dequantizing layer.
    """
    texts = {(pair.engine, pair.layer): f"{_SAID[pair.fused]}: {pair.type} {pair.of}, {pair.why}" for pair in pairs}
    found = defaultdict(list)
    for network in networks:
        for name, layer in _quantized(network):
            if (network.name, layer) in texts:
                found[network.name, name].append(texts[network.name, layer])
    return {place: "; ".join(dict.fromkeys(words)) for place, words in found.items()}


def _quantized(network: Network) -> Iterator[tuple[str, str]]:
    """Yield each node that quantizes or dequantizes, with the layer that dequantizes its values."""
    makers = {tensor.name: layer for layer in network.layers for tensor in layer.outputs}
    for layer in network.layers:
        if layer.kind == "DEQUANTIZE":
            yield node_of(layer.name), layer.name
            maker = makers.get(str(layer.inputs[0]))
            if maker is not None and maker.kind in _QUANTIZES:
                yield node_of(maker.name), layer.name
