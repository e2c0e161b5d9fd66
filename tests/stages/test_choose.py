"""`choose`: engines that are slower than PyTorch become segments of it; nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import pipeline
from pipeline.compat.transformers import compile_for_generation
from pipeline.compiled import Compiled
from pipeline.converters.declare import Rejection
from pipeline.export_fixes.requests import Tuned
from pipeline.profiling import measure, measurements, segment_costs
from pipeline.profiling.measurements import Measurements, Milliseconds
from pipeline.profiling.segment_costs import SegmentCost
from pipeline.runtime import few_rows
from pipeline.stages import choose, faster_in_torch, unbuilt
from pipeline.stages.choose import Choose
from pipeline.stages.faster_in_torch import kinds_in_words, to_try_in_torch
from pipeline.verification.engines_in_torch import captured_program_in_torch
from pipeline.verification.samples import create_sample, tuned_sizes
from tests.compat import families
from tests.verification.test_loading import noted


class Three(nn.Module):
    """Three engines, between operators that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        for part in self.parts:
            x = torch.digamma(part(x).exp().tanh() + 2)
        return x


class Times:
    """A GPU on which the engine of some index takes so many milliseconds, PyTorch 1 for each segment, and ``captured``
    for the program as it was captured; None: that does not run."""

    def __init__(self, slow: Mapping[int, float], host: float = 0.1, captured: float | None = 99.0) -> None:
        self.slow, self.host, self.captured, self.asked = slow, host, captured, list[Compiled]()

    def __call__(self, programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        self.asked += programs
        ours, theirs, *rest = programs
        if rest and self.captured is None:
            raise RuntimeError("an operator has no kernel for this GPU")
        whole = [{s.name: SegmentCost(self.captured or 0.0, self.host) for s in p.partitioned.segments} for p in rest]
        return [self.costs(ours), self.costs(theirs), *whole]

    def costs(self, compiled: Compiled) -> Mapping[str, SegmentCost]:
        engines = [segment.name for segment in compiled.partitioned.engine_segments]
        found = {name: self.slow.get(i, 0.5) for i, name in enumerate(engines)}
        return {s.name: SegmentCost(found.get(s.name, 1.0), self.host) for s in compiled.partitioned.segments}


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "has_gpu", lambda: True)
    monkeypatch.setattr(choose, "copy_cached_kernels", lambda before, after: None)


def compiled(times: Any, monkeypatch: pytest.MonkeyPatch, kept: Measurements | None = None, **options: Any) -> Compiled:
    monkeypatch.setattr(choose, "LARGE", 0)
    compile = pipeline.default(
        min_block_size=1, torch_executed_ops={"aten.digamma"}, load_built_engines=True, **options
    )
    compile = compile.replace("build", noted).replace("choose", Choose(times, kept or Measurements()))
    return compile.replace("load", as_is)(Three().eval(), (torch.rand(2, 8),))


def as_is(compiled: Compiled) -> Compiled:
    return compiled


def test_the_slower_engine_is_a_segment_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times({1: 1.5})
    found = compiled(times, monkeypatch)
    before, all_in_torch, _ = times.asked
    names = [segment.name for segment in before.partitioned.segments]
    assert [s.kind for s in all_in_torch.partitioned.segments] == ["torch"] * len(names) and not all_in_torch.engines
    slow = before.partitioned.engine_segments[1]
    assert [s.name for s in found.partitioned.segments] == [
        n.replace("engine", "torch") if n == slow.name else n for n in names
    ]
    assert found.engines == tuple(e for e in before.engines if e.name != slow.name)
    assert found.networks == tuple(n for n in before.networks if n.name != slow.name)
    [reason] = {f.reason for f in found.coverage.fallback if f.node in slow.nodes}
    assert reason == "PyTorch is faster on this GPU: its engine takes 1.5 ms, and PyTorch 1 ms"
    [hint] = {f.hint for f in found.coverage.fallback if f.node in slow.nodes}
    assert "faster_in_torch=False" in hint
    x, model = torch.rand(2, 8), Three().eval()
    model.load_state_dict(dict(found.program.parameters))
    torch.testing.assert_close(found.module("reference")(x), model(x))


@pytest.mark.parametrize(
    ("times", "options"),
    [
        (Times({1: 1.02}), {}),  # within the margin
        (Times({1: 1.05}), {}),  # too little to gain
        (Times({1: 1.5}, host=2.0), {}),  # the host cannot launch it so fast
        (Times({1: 1.05}, captured=4.95), {}),  # 5.05 in engines, with the operators between: within the margin
        (Times({1: 1.5}), {"faster_in_torch": False}),
    ],
)
def test_what_does_not_pay_stays(times: Times, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled(times, monkeypatch, **options)
    assert len(found.engines) == 3 and len(times.asked) == (0 if options else 3)


def test_the_whole_program_runs_as_captured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = Times({1: 1.5}, captured=2.5)
    found = compiled(times, monkeypatch)
    assert not found.engines and not found.networks and len(found.partitioned.segments) == 1
    assert found.program.graph is found.program.source.graph and not found.coverage.converted
    [reason] = {f.reason for f in found.coverage.fallback}  # engines 0.5, 1 in PyTorch, and 0.5; 3 operators between
    assert reason == "PyTorch is faster on this GPU: the program takes 5 ms, and PyTorch 2.5 ms"
    x, model = torch.rand(2, 8), Three().eval()
    model.load_state_dict(dict(found.program.parameters))
    torch.testing.assert_close(found.module("reference")(x), model(x), rtol=0, atol=0)
    found.save(tmp_path / "captured.trtp")
    with pytest.warns(pipeline.ArtifactWarning):
        loaded = pipeline.load(tmp_path / "captured.trtp")
    assert loaded.coverage.fallback == found.coverage.fallback
    torch.testing.assert_close(loaded.module("reference")(x), model(x), rtol=0, atol=0)
    other = Three().eval()
    for program in (found, loaded):
        refitted = pipeline.refit_module_weights(program, other)
        torch.testing.assert_close(refitted.module("reference")(x), other(x), rtol=0, atol=0)
    with torch.no_grad():
        found.program.parameters["parts.0.weight"].add_(1)
    with pytest.raises(pipeline.ExecutionError, match="was changed in place"):
        found.module("reference")


class Caching(nn.Module):
    """A decoder's step: a cache that is updated in place, and an operator that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 1, 16, 8))

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """[1, L, 8] -> [1, 1, L, 8]"""
        y = self.first(x)[:, None]
        self.keys.index_copy_(2, torch.arange(x.shape[1]) + start, y)
        y = (y @ self.keys.mT).sort(-1).values.softmax(-1) @ self.keys
        return self.last(y * x.shape[1])


class Store(dict[str, Milliseconds]):
    """Measurements in memory."""

    def load(self, targets: Sequence[str]) -> Mapping[str, Milliseconds]:
        return self

    def save(self, found: Mapping[str, Milliseconds]) -> None:
        self.update(found)


STEPS = ([0, 5], [5, 1], [6, 1], [7, 3])
"""The start and length of each call."""


class ProfileTimes(Times):
    """The same, where engines of a profile are slow: ``slow`` has them by profile; and ``split`` the milliseconds with
    matmuls in PyTorch."""

    split: Mapping[int, float] = {}

    def __call__(self, programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        found = super().__call__(programs, profile)
        slow = 2.0 if profile in self.slow else 0.5
        ran = [{s.name for s in each.partitioned.segments if s.runs_in(profile)} for each in programs]
        rows = [{n: c for n, c in costs.items() if n in names} for costs, names in zip(found, ran, strict=True)]
        forms = [{n: SegmentCost(slow, 0.1) if n.startswith("engine") else c for n, c in row.items()} for row in rows]
        if programs[-1].engines and len(programs) == 3:
            forms[2] = dict.fromkeys(ran[2], SegmentCost(self.split.get(profile or 0, 99.0) / len(ran[2]), 0.0))
        return forms


@pytest.fixture(scope="module")
def by_profile() -> tuple[Compiled, Choose]:
    """A program and its stage, with an engine for single rows and one for several, which read weights in place."""
    return caching(pipeline.shared_weights(64), pipeline.engine_per_profile())


def caching(*more: Any) -> tuple[Compiled, Choose]:
    compile = pipeline.default(min_block_size=1, torch_executed_ops={"aten.sort"}, load_built_engines=True)
    for stage in reversed(more):
        compile = compile.insert(stage, after="partition")
    compile = compile.replace("build", noted)
    profiles = [{"x": {1: 1}}, {"x": {1: Tuned("rows", 2, 8, 8)}}]
    args = torch.rand(1, 4, 8), torch.tensor(0)
    compile = compile.replace("load", as_is).replace("choose", as_is)
    made = compile(Caching().eval(), args, profiles=profiles)
    assert isinstance(made, Compiled)
    return made, Choose(earlier_stages=compile.stages[:-1])


def check_values(program: Compiled, tmp_path: Path) -> None:
    """Compare a program, its file, and the program with other weights to the model."""
    program.save(tmp_path / "chosen.trtp")
    with pytest.warns(pipeline.ArtifactWarning):
        loaded = pipeline.load(tmp_path / "chosen.trtp")
    assert loaded.partitioned.segments == program.partitioned.segments and loaded.coverage == program.coverage
    other = Caching().eval()
    torch.nn.init.ones_(other.first.weight)
    refitted = pipeline.refit_module_weights(program, other)
    for each, model in ((program, Caching().eval()), (loaded, Caching().eval()), (refitted, other)):
        module = each.module("reference")
        for start, rows in STEPS:
            given = torch.rand(1, rows, 8), torch.tensor(start)
            torch.testing.assert_close(module(*given), model(*given))


@pytest.mark.parametrize("slow", [{0}, {1}, {0, 1}])
def test_the_engines_of_a_profile_are_segments_of_pytorch(
    slow: set[int], by_profile: tuple[Compiled, Choose], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choose, "LARGE", 0)
    (program, stage), store = by_profile, Store()
    found = evolve(stage, timer=ProfileTimes(dict.fromkeys(slow, 2.0)), kept=store)(program)
    kinds = {(s.profile, s.kind) for s in found.partitioned.segments if s.profile is not None}
    assert kinds == {(profile, "torch" if profile in slow else "engine") for profile in (0, 1)}
    assert len(found.engines) == len(found.networks) == 4 - 2 * len(slow)
    [*others, sort] = sorted(found.coverage.fallback, key=lambda each: "sort" in each.target)
    for profile in slow:
        why = f"its engine takes 2 ms in profile {profile}, and PyTorch 1 ms"
        assert others and all(why in each.reason for each in others)
    assert sort.target == "aten.sort.default" and not found.coverage.converted
    assert found.coverage.total == program.coverage.total
    assert all("p_first_weight" not in segment.constants for segment in found.partitioned.segments), "in one copy"
    again = evolve(stage, timer=(fresh := ProfileTimes({})), kept=store)(program)
    assert again.partitioned.segments == found.partitioned.segments and not fresh.asked
    check_values(found, tmp_path)


def test_engines_for_all_profiles_are_replaced_if_they_are_slow_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LARGE", 0)
    program, stage = caching()
    for slow, captured, left in (({0}, 99.0, 2), ({0, 1}, 99.0, 0), ({0}, 2.5, 2), ({0, 1}, 2.5, 0)):
        times = ProfileTimes(dict.fromkeys(slow, 2.0), captured=captured)
        found = evolve(stage, timer=times)(program)
        assert len(found.engines) == left, f"slow in {slow}"
        assert (found.program.graph is program.program.source.graph) == (captured < 3 and slow == {0, 1})


def test_segments_that_run_in_a_profile_are_measured(
    by_profile: tuple[Compiled, Choose], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host's clock, in place of a GPU's events."""
    for name, instead in {
        "create_instrumentable": lambda compiled, shared: compiled.module("reference"),
        "record_event": time.perf_counter,
        "elapsed_milliseconds": lambda marks: [end - start for start, end in marks],
        "keep_busy": lambda cycles: None,
        "_copy_to_gpu": lambda value: value,
    }.items():
        for module in (measure, segment_costs):
            monkeypatch.setattr(module, name, instead, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    program = by_profile[0]
    for profile, rows in ((0, [1]), (1, [8, 2])):
        sizes = tuned_sizes(program.program, profile)
        assert [size for each in sizes for size in each.values()] == rows
        arguments = (
            create_sample(program.program, each).arguments(program.program, torch.device("cpu")) for each in sizes
        )
        [costs] = segment_costs.segment_costs([program], [measure.Call(*each) for each in arguments])
        assert {*costs} == {s.name for s in program.partitioned.segments if s.runs_in(profile)}


@pytest.mark.parametrize("split", [{0}, {1}, {0, 1}])
def test_matmuls_of_a_profile_run_in_pytorch(
    split: set[int], by_profile: tuple[Compiled, Choose], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choose, "LARGE", 0)
    monkeypatch.setattr(faster_in_torch, "LEAST", 0)
    monkeypatch.setattr(faster_in_torch, "HALVES", (torch.float32,))
    (program, stage), store, times = by_profile, Store(), ProfileTimes({1: 2.0})
    times.split = dict.fromkeys(split, 1.5)  # 2 in engines in profile 0, and 3 with engines in PyTorch in profile 1
    found = evolve(stage, timer=times, kept=store)(program)
    own = {profile: [s for s in found.partitioned.segments if s.runs_in(profile)] for profile in (0, 1)}
    for profile in split:
        assert {s.kind for s in own[profile]} == {"engine", "torch"} and len(own[profile]) > 4
        matmuls = [s for s in own[profile] if s.kind == "torch" and any("linear" in name for name in s.nodes)]
        assert len(matmuls) == 2 and all(segment.inputs for segment in matmuls)
        assert any("p_first_weight" in {port.name for port in segment.inputs} for segment in matmuls), "in one copy"
    assert (0 in split) or [s.kind for s in own[0]] == ["engine", "torch", "engine"]
    assert (1 in split) or {s.kind for s in own[1]} == {"torch"}
    linear = next(each for each in found.coverage.fallback if "linear" in each.target)
    assert all(
        f" in profile {profile}, and with matmuls by weights in PyTorch 1.5 ms" in linear.reason for profile in split
    )
    assert found.coverage.total == program.coverage.total
    again = evolve(stage, timer=(fresh := ProfileTimes({})), kept=store)(program)
    assert again.partitioned.segments == found.partitioned.segments and not fresh.asked
    check_values(found, tmp_path)


class Counting(nn.Module):
    """State that a call writes, a view, and the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """[N, 4] -> [N, 4], [4N], and the input"""
        y = self.layer(x)
        self.total.add_(y.sum(0))
        return {"y": y + self.total, "flat": x.flatten(), "x": x}


def test_a_captured_program_has_state_and_sizes() -> None:
    model, x = Counting().eval(), torch.rand(3, 4)
    rows = pipeline.Input(min_shape=(1, 4), max_shape=(8, 4))
    made = pipeline.default(min_block_size=1).replace("build", noted)(model, (rows,))
    module = captured_program_in_torch(made, Rejection("it is a test")).module("reference")
    for given in (x, x, x[:2].clone()):
        found, expected = module(given), model(given)
        assert found["x"] is given and found["flat"].data_ptr() != given.data_ptr()
        torch.testing.assert_close(found, expected)


def test_a_captured_program_that_does_not_run_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = list[int]()
    times = Times({1: 1.5}, captured=None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(len(times.asked)))
    assert len(compiled(times, monkeypatch).engines) == 2 and len(times.asked) == 5
    assert freed == [3, 5], "the forms that were measured leave their memory to TensorRT"


def test_a_program_under_torch_compile_may_be_small_and_gain_little(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times({1: 1.05})
    found = compiled(times, monkeypatch, torch_compile="default")
    reasons = {fallback.reason for fallback in found.coverage.fallback}
    assert "PyTorch is faster on this GPU: its engine takes 1.05 ms, and PyTorch 1 ms" in reasons
    monkeypatch.setattr(choose, "LARGE", 1 << 40)
    Choose(again := Times({}))(times.asked[0])
    assert len(again.asked) == 3


def test_ranks_take_the_times_of_the_slowest() -> None:
    found = measurements.merge_slowest(
        [{"a": (1.0, 2.0), "b": (1.0, None)}, {"a": (3.0, 1.0), "b": (2.0, 1.0), "c": (1.0, 1.0)}]
    )
    assert found == {"a": (3.0, 2.0), "b": (2.0, None), "c": (1.0, 1.0)}


def test_a_small_program_is_not_measured() -> None:
    program = pipeline.capture(Three().eval(), (torch.rand(2, 8),))
    assert 0 < choose.tensor_bytes(program) < choose.LARGE


@pytest.mark.parametrize("groups", [1, 4])
def test_smaller_programs_are_measured_with_convolutions_in_groups(groups: int) -> None:
    model, x = nn.Conv2d(4, 4, 3, groups=groups).eval(), torch.rand(4, 4, 512, 512)
    times, compile = Times({}), pipeline.default(min_block_size=1, load_built_engines=True).without("choose")
    Choose(times)(compile.replace("build", noted).replace("load", as_is)(model, (x,)))
    assert len(times.asked) == (3 if groups > 1 else 0)


def test_long_prompts_attend_in_pytorch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of PyTorch write no products of queries and keys; for a token TensorRT's is faster, but in a CUDA graph,
    where a kernel of ours reads the filled part of the cache alone."""
    model = families.model("llama", torch.float16)
    sizes: dict[str, Any] = {"max_cache_len": 256, "max_batch": 2, "max_prompt_len": 128, "executor": "reference"}
    compile = pipeline.default().replace("build", unbuilt)
    program = compile_for_generation(model, **sizes, compile=compile).compiled["decoder"].program
    monkeypatch.setattr(faster_in_torch, "LEAST", 0)
    names = [to_try_in_torch(program, profile) for profile in (0, 1)]
    words = {kinds_in_words(program, each) for each in names}
    assert words == {"matmuls by weights", "matmuls by weights and attention"}
    token, prompt = sorted(names, key=len)
    attentions = {*prompt} - {*token}
    assert {*token} < {*prompt}
    assert len(attentions) == 3 * model.config.num_hidden_layers, "attention, its mask, and the choice that it marks"
    monkeypatch.setattr(few_rows, "WIDTHS", (model.config.head_dim,))
    in_graphs = evolve(program, settings=program.settings.evolve(cuda_graphs=True))
    assert all({*to_try_in_torch(in_graphs, profile)} == {*prompt} for profile in (0, 1))
