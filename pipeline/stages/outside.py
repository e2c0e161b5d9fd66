"""Two stages after ``partition`` that keep weights outside of engines, and build a separate engine for each profile.

If engines hold their weights, an engine per profile means a copy of the weights per profile. Engines that read weights
in place are small and quick to build, and share one copy, so that each can be built for the sizes of one profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from attrs import evolve, field, frozen

from pipeline.aten.own_ops import SELECTIVE_SCAN
from pipeline.aten.traits import Kind, op_kind
from pipeline.build.profiles import engine_profiles
from pipeline.partitioning.assemble import cuts
from pipeline.program import Partitioned, Port, Program, Segment, make_port
from pipeline.settings import integer_validator

LEAST = 64
"""The minimum bytes of a weight that becomes an input of engines; smaller weights stay inside engines."""
MOST = 16 << 20
"""The maximum bytes of weights that may be duplicated because each profile's engine contains them."""
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
READERS = (Kind.MULTIPLIES, Kind.PROJECTS, Kind.POINTWISE, Kind.NORMALIZES)
"""The kinds of operators, besides `TABLES`, whose converters accept a weight as a constant or as an engine input."""
TABLES = (torch.ops.aten.embedding.default, SELECTIVE_SCAN)


_is_byte_count = integer_validator(0, optional=False, what="a number of bytes,")


@frozen
class SharedWeights:
    """The stage that keeps large weights outside of engines; `shared_weights` returns it."""

    least: int = field(default=LEAST, validator=_is_byte_count)
    name: str = field(default="shared_weights", kw_only=True)

    def __call__(self, partitioned: Partitioned) -> Partitioned:
        """Return the segments with shared weights as inputs of engines and of PyTorch segments."""
        nodes = {node.name: node for node in partitioned.program.graph.nodes}

        def changed(segment: Segment) -> Segment:
            shared = [name for name in segment.constants if self._should_share(partitioned, segment, nodes[name])]
            own = tuple(name for name in segment.constants if name not in shared)
            ports = (make_port(name, nodes[name].meta["val"], partitioned.program.shapes) for name in shared)
            return evolve(segment, inputs=(*segment.inputs, *ports), constants=own)

        return evolve(partitioned, segments=tuple(map(changed, partitioned.segments)))

    def _should_share(self, partitioned: Partitioned, segment: Segment, weight: torch.fx.Node) -> bool:
        """Return whether to keep a weight outside of a segment, so that engines share it: it is large, and the
        converters that read it accept weights as network inputs."""
        value, inside = weight.meta["val"], frozenset(segment.nodes)
        if not isinstance(value, torch.Tensor) or value.dtype not in FLOATS or value.nbytes < self.least:
            return False
        readers = [user for user in weight.users if user.name in inside]
        return segment.kind == "torch" or all(_accepts_weights_as_inputs(partitioned, user) for user in readers)


@frozen
class EnginePerProfile:
    """The stage that builds a separate engine for each profile; `engine_per_profile` returns it."""

    most: int = field(default=MOST, validator=_is_byte_count)
    name: str = field(default="engine_per_profile", kw_only=True)

    def __call__(self, partitioned: Partitioned) -> Partitioned:
        """Return the program with one engine for each profile in place of each engine that serves several profiles.
        Some engines stay as they are (see `_split_by_profile`), and all if ``max_engines`` is set."""
        program = partitioned.program
        if program.settings.max_engines is not None:
            return partitioned
        segments = tuple(each for segment in partitioned.segments for each in self._split_by_profile(program, segment))
        return evolve(partitioned, segments=segments, cuts=tuple(cuts(segments)))

    def _split_by_profile(self, program: Program, segment: Segment) -> Iterator[Segment]:
        """Yield a copy of the segment for each profile. Yield only the segment itself if PyTorch runs it, if its inputs
        have equal sizes in all profiles, if it computes new sizes, or if its weights have more than ``most`` bytes."""
        nodes = {node.name: node for node in program.graph.nodes}
        alone = segment.kind != "engine" or segment.profile is not None or _computes_new_sizes(segment)
        if (
            alone
            or len(engine_profiles(program, segment, lambda port: True)) < 2
            or sum(nodes[name].meta["val"].nbytes for name in segment.constants) > self.most
        ):
            yield segment
            return
        for place in range(len(program.profiles)):
            yield evolve(segment, name=f"{segment.name}_profile_{place}", profile=place)


def shared_weights(least: int = LEAST) -> SharedWeights:
    """Return a stage that keeps large weights outside of engines:
    ``compile.insert(pipeline.shared_weights(), after="partition")``.

    A module has one copy of these weights on its device, which all its engines and states read. Plans are small, a
    change of weights needs no new engine, and layers that differ only in weights share one engine, which is built and
    loaded once (``pipeline.in_pieces(between="layers.*")``). TensorRT cannot rearrange such weights ahead of time. A
    module has the weights that the model was compiled with. After a change of weights, or if the file was saved without
    weights, call `pipeline.refit_module_weights`.

    Args:
        least: the minimum size of a shared weight in bytes, 64 by default. A shared weight must be in float32, float16
            or bfloat16, and only matmuls, norms, embeddings and elementwise operators may read it.
    """
    return SharedWeights(least)


def engine_per_profile(most: int = MOST) -> EnginePerProfile:
    """Return a stage that builds a separate engine for each profile of a program, tuned for the sizes of that profile:
    ``compile.insert(pipeline.engine_per_profile(), after="partition")``.

    Without this stage, or if the setting ``max_engines`` limits the engines, one engine serves all profiles.

    Args:
        most: the maximum bytes of weights in an engine that is split. An engine with more serves all profiles, since
            each engine would contain the weights. 16 MiB by default; `shared_weights` leaves fewer in engines.
    """
    return EnginePerProfile(most)


def _accepts_weights_as_inputs(partitioned: Partitioned, node: torch.fx.Node) -> bool:
    """Return whether a node's converter belongs to this package and accepts network tensors as weights."""
    choice = partitioned.verdicts[node.name].choice if node.name in partitioned.verdicts else None
    ours = choice is not None and choice.support.converter_implementation.__module__.startswith("pipeline.")
    return ours and (op_kind(node.target) in READERS or node.target in TABLES)


def _computes_new_sizes(segment: Segment) -> bool:
    """Return whether a segment computes sizes that the sizes of its inputs do not determine."""

    def symbols(ports: Iterable[Port]) -> set[str]:
        sizes = (size for port in ports for size in (*port.shape, port.value))
        return {str(symbol) for size in sizes for symbol in getattr(size, "free_symbols", ())}

    return not symbols(segment.outputs) <= symbols(segment.inputs)
