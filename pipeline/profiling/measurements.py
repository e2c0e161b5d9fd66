"""Keys under which measured times of a program are saved, so that later compilations need not measure again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import torch
from attrs import field, frozen

from pipeline.build.serialized_plans import BuildOrder
from pipeline.compiled import Compiled
from pipeline.frozen import FrozenDict
from pipeline.network.canonical import canonical
from pipeline.program import text_digest

Milliseconds: TypeAlias = "tuple[float, float | None]"
"""The measured milliseconds of a program in TensorRT and in PyTorch; None if it was not measured in PyTorch."""


WITHOUT_EFFECT: Final = frozenset(
    {
        *("cache_built_engines", "compute_capabilities", "copy_weights", "device", "engine_cache_dir"),
        *("engine_cache_size", "execution_contexts", "load_built_engines", "max_cuda_graphs", "measurements"),
        *("progress", "refittable_weights", "reuse_cached_engines", "runtime_cache"),
    }
)
"""Settings that do not affect the measured times, and are therefore left out of the keys."""


def merge_slowest(by_rank: Sequence[Mapping[str, Milliseconds]]) -> Mapping[str, Milliseconds]:
    """Return, by key, the longest time that any rank measured, since a distributed call waits for the slowest rank."""
    merged = dict[str, Milliseconds]()
    for key, (ours, theirs) in (item for pairs in by_rank for item in pairs.items()):
        slowest = merged.get(key, (ours, theirs))
        both = None if theirs is None or slowest[1] is None else max(theirs, slowest[1])
        merged[key] = max(ours, slowest[0]), both
    return merged


@frozen
class Measurements:
    """A store of the measured times of programs and engines, by `Keys`; this one is always empty, others extend it."""

    def load(self, targets: Sequence[str]) -> Mapping[str, Milliseconds]:
        """Return, by key (a value in `Keys`), the times measured on the current model of GPU. Without a GPU, or if
        ``targets`` (compute capabilities) lack its own: those of the only stored GPU model that has the one target."""
        return {}

    def save(self, measured: Mapping[str, Milliseconds]) -> None:
        """Save measured times for the current GPU; times that are already saved are not replaced."""


@frozen
class Keys:
    """The keys under which a program's measured times are saved: digests of everything that determines times, except
    the GPU and the versions of libraries.

    program: the key of the whole program, a digest of the captured graph and its sizes. Saved under it: the time of the
        fastest mixture of engines and PyTorch, and that of an alternative with more operators in PyTorch.
    engines: the key of each engine, by engine name: a digest of its network that does not depend on names.

    A program with optimization profiles has `Keys` for each profile, with only the engines that run in that profile.
    """

    program: str
    engines: Mapping[str, str] = field(factory=FrozenDict)

    @classmethod
    def of(cls, compiled: Compiled, profile: int | None = None, alternative: str = "program") -> Keys:
        """Return the keys of a program or of one of its optimization profiles (by index). ``alternative``: what runs in
        PyTorch in the alternative that is timed too (``program``: all of it); the text is part of the program's key."""
        changed = [f"{name}={v}" for name, v in compiled.settings.changed().items() if name not in WITHOUT_EFFECT]
        backends = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
        precisions = [str(backend.fp32_precision) for backend in backends]
        prefix = "\n".join([*changed, *precisions, *([] if profile is None else [f"profile {profile}"])])
        rows = zip(compiled.partitioned.engine_segments, compiled.networks, strict=True)
        segments = [(segment, network) for segment, network in rows if segment.runs_in(profile)]
        texts = {n.name: canonical(n, BuildOrder.for_segment(s, n, compiled.settings).sizes).text for s, n in segments}
        engines = {name: text_digest(f"{prefix}\nengine\n{text}") for name, text in texts.items()}
        captured = compiled.program.source or compiled.program
        return cls(text_digest(f"{prefix}\n{alternative}\n{captured}"), FrozenDict(engines))
