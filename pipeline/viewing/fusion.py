"""What became of nodes that quantize and dequantize: whether a product reads their codes (`Compiled.quantization`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pipeline.aten.naming import node_of
from pipeline.network.description import Network
from pipeline.network.pairs import Pair

_QUANTIZES = frozenset({"QUANTIZE", "DYNAMIC_QUANTIZE"})
_SAID = {True: "fused", False: "not fused", None: "not known"}


def fusions(networks: Iterable[Network], pairs: Iterable[Pair]) -> Mapping[tuple[str, str], str]:
    """Return in words, by engine and node, what became of the weight or activation that the node quantizes or
    dequantizes; other nodes are left out.

    Args:
        networks: the engines' networks.
        pairs: what their plans show, a row for each dequantizing layer.
    """
    said = {(pair.engine, pair.layer): _words(pair) for pair in pairs}
    found = defaultdict(list)
    for network in networks:
        for name, layer in _quantized(network):
            if (network.name, layer) in said:
                found[network.name, name].append(said[network.name, layer])
    return {place: "; ".join(dict.fromkeys(words)) for place, words in found.items()}


def _words(pair: Pair) -> str:
    return f"{_SAID[pair.fused]}: {pair.type} {pair.of}, {pair.why}"


def _quantized(network: Network) -> Iterator[tuple[str, str]]:
    """Each node that quantizes or dequantizes, with the layer that gives its numbers back."""
    makers = {tensor.name: layer for layer in network.layers for tensor in layer.outputs}
    for layer in network.layers:
        if layer.kind == "DEQUANTIZE":
            yield node_of(layer.name), layer.name
            maker = makers.get(str(layer.inputs[0]))
            if maker is not None and maker.kind in _QUANTIZES:
                yield node_of(maker.name), layer.name
