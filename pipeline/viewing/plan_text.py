"""Describe as text which engines would be built for a partitioned program, and which quantized nodes are fused.
A quantize or dequantize node may be fused into a matmul or convolution (`Compiled.quantization`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pipeline.aten.naming import node_name
from pipeline.network.description import Network
from pipeline.network.pairs import Pair
from pipeline.records.wording import format_bytes
from pipeline.viewing.records import ProgramView


def plan_text(view: ProgramView) -> str:
    """Describe the engines that would be built and their sizes, and the operators that would run in PyTorch and why."""
    return "\n".join(_plan_lines(view))


def _plan_lines(view: ProgramView) -> Iterator[str]:
    """Yield the lines of `plan_text`."""
    engines = [s for s in view.segments if s.place == "tensorrt"]
    inside = len(view.operators) - len(view.fallbacks)
    plural = "s"[: len(engines) != 1]
    total = f"{inside} of {len(view.operators)} operators"
    yield f"{view.title}: {len(engines)} engine{plural} would be built, {total} in TensorRT"
    yield from (f"input  {line}" for line in view.inputs)
    yield from (f"output {line}" for line in view.outputs)
    yield from (f"size   {line}" for line in view.sizes)
    for segment in view.segments:
        size = f"weights {format_bytes(segment.weights)}"
        operators = f"{segment.operators} operator{'s'[: segment.operators != 1]}"
        if segment.place == "tensorrt":
            yield f"engine {segment.name}: {operators}, {size}, which its plan holds at least once"
        else:
            yield f"PyTorch {segment.name}: {operators}, {size}"
        counts = Counter(node.target for node in view.operators if node.segment == segment.name)
        listed = ", ".join(f"{n} {target}" for target, n in sorted(counts.items(), key=lambda row: (-row[1], row[0])))
        yield f"  {listed}"
        yield from (f"  input  {port}" for port in segment.inputs)
        yield from (f"  output {port}" for port in segment.outputs)
    for cut in view.cuts:
        yield f"cut {cut.source} -> {cut.target}: {format_bytes(cut.nbytes)}, at most {format_bytes(cut.max_nbytes)}"
    for node in view.fallbacks:
        yield f"in PyTorch: {node.target} at node {node.name}{f' ({node.where})' if node.where else ''}"
        yield from (f"  {line}" for line in (node.reason, f"hint: {node.hint}" if node.hint else "") if line)
    yield from map(str, view.unreached)
    yield f"settings: {', '.join(f'{name}={value}' for name, value in view.settings) or 'as by default'}"
    yield f"versions: {', '.join(f'{name} {number}' for name, number in view.versions)}"
    yield f"seconds: {', '.join(f'{stage.stage} {stage.seconds:.2f}' for stage in view.stages)}; nothing was built"


_QUANTIZES = frozenset({"QUANTIZE", "DYNAMIC_QUANTIZE"})
_WORDS = {True: "fused", False: "not fused", None: "not known"}


def fusion_texts(networks: Iterable[Network], pairs: Iterable[Pair]) -> Mapping[tuple[str, str], str]:
    """Return a text for each node that quantizes or dequantizes, by engine and node: whether the quantized weight or
    activation is fused into a matmul or convolution.

    Args:
        networks: the engines' networks.
        pairs: for each dequantizing layer, whether it is fused according to the engine's plan.
    """
    texts = {(pair.engine, pair.layer): f"{_WORDS[pair.fused]}: {pair.type} {pair.of}, {pair.why}" for pair in pairs}
    found = defaultdict(list)
    for network in networks:
        makers = {tensor.name: layer for layer in network.layers for tensor in layer.outputs}
        for layer in network.layers:
            if layer.kind == "DEQUANTIZE" and (text := texts.get((network.name, layer.name))) is not None:
                maker = makers.get(str(layer.inputs[0]))
                quantizing = [maker] if maker is not None and maker.kind in _QUANTIZES else []
                for each in (layer, *quantizing):
                    found[network.name, node_name(each.name)].append(text)
    return {key: "; ".join(dict.fromkeys(words)) for key, words in found.items()}
