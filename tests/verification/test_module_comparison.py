"""The captured graph beside the module that it was captured from: what torch.export makes otherwise is found, and named
as torch.export's; the module stays as it is, and is not kept alive."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.records.agreement import Agreement
from pipeline.stages import unbuilt
from pipeline.verification import module_comparison as beside
from pipeline.verification.measure import Comparison
from pipeline.verification.module_comparison import add_module_rows
from tests.meta.executor_faults import factor, planted

COMPILE = pipeline.default().replace("build", unbuilt)


def verified(compiled: pipeline.Compiled, **options: Any) -> Agreement:
    found = pipeline.verify("warn", executor="reference", **options)(compiled).agreement
    assert found is not None
    return found


class Otherwise(nn.Module):
    """Attends to later tokens unless it is traced, as UMT5 of transformers 5.17 does."""

    def __init__(self, otherwise: bool = True) -> None:
        super().__init__()
        self.linear, self.otherwise = nn.Linear(8, 8), otherwise

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, L, 8] -> what each token attends to, and twice the input"""
        scores = self.linear(x) @ x.transpose(1, 2)
        if torch.compiler.is_exporting() or not self.otherwise:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -1e9)
        return scores.softmax(-1) @ x, x * 2


def otherwise(model: nn.Module) -> pipeline.Compiled:
    dims = ({0: Dim("batch", min=1, max=5)},)
    compiled: pipeline.Compiled = COMPILE(model.eval(), (torch.randn(2, 4, 8),), dynamic_shapes=dims)
    return compiled


def test_what_torch_export_makes_otherwise_is_named_as_that() -> None:
    model = Otherwise()
    with pytest.raises(pipeline.AgreementError) as caught:
        pipeline.verify(executor="reference")(otherwise(model))
    agreement: Any = caught.value.agreement
    said = str(caught.value)
    assert [(row.output, row.sample, row.source) for row in agreement.failures] == [
        ("output.0", size, "module") for size in ("smallest", "optimal", "largest")
    ]
    assert agreement.failures == agreement.differences
    assert "captured graph differs from the module in 3 of 6 outputs: this comes of torch.export" in said
    assert "module=False" in said and "DIFFERS" in said
    assert "bisect" not in said and "outputs are wrong" not in said


def test_a_graph_that_computes_the_same_is_compared_at_every_size() -> None:
    model = Otherwise(otherwise=False)
    agreement = verified(otherwise(model))
    rows = [row for row in agreement.rows if row.source == "module"]
    assert agreement.holds and not agreement.module
    assert {(row.output, row.sample) for row in rows} == {(row.output, row.sample) for row in agreement.rows}
    assert len(rows) * 2 == len(agreement.rows) == 12
    assert "output.0, optimal, the module: error" in str(agreement)
    assert agreement.worst is not None and agreement.worst.source == "graph"


class Remembers(nn.Module):
    """Adds how often it was called, which torch.export takes for 0."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, L, 8] -> [N, L, 8]"""
        done = 0 if torch.compiler.is_exporting() else self.calls
        self.calls = done + 1
        return x * 2 + done


def test_a_module_that_keeps_what_it_was_called_with_is_compared_as_it_is(copies: list[nn.Module]) -> None:
    model = Remembers()
    compiled = otherwise(model)
    model.calls = 0
    assert verified(compiled).holds
    assert model.calls == 0
    assert len(copies) == 3  # one for all, and a new one where that differed


def test_one_copy_of_a_module_does_for_all_sizes(copies: list[nn.Module]) -> None:
    assert verified(otherwise(Otherwise(otherwise=False))).holds
    assert len(copies) == 1


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that are copied."""
    made: list[nn.Module] = []
    real = beside._copy_module

    def copied(module: nn.Module, program: pipeline.Program) -> Any:
        made.append(module)
        return real(module, program)

    monkeypatch.setattr(beside, "_copy_module", copied)
    return made


def test_it_warns_or_goes_on_with_the_graph() -> None:
    model = Otherwise()
    compiled = otherwise(model)
    with pytest.warns(pipeline.AgreementWarning, match="differs from the module"):
        assert not verified(compiled).holds
    agreement = pipeline.verify(executor="reference", module=False)(compiled).agreement
    assert agreement is not None and agreement.holds and {row.source for row in agreement.rows} == {"graph"}
    with pytest.raises(TypeError):
        pipeline.verify(module="no")  # type: ignore[arg-type]


def test_it_is_not_healed_and_no_fault_of_an_engine() -> None:
    model = Otherwise()
    compiled = otherwise(model)
    with planted(factor, "SOFTMAX"), pytest.raises(pipeline.AgreementError, match="differs from the module") as caught:
        pipeline.verify("heal", executor="reference")(compiled)
    agreement: Any = caught.value.agreement
    assert agreement.failures == agreement.differences != ()
    assert pipeline.bisect(compiled, executor="reference").faults == ()


def test_a_module_elsewhere_is_compared_there_at_one_size() -> None:
    model = Otherwise()
    compiled = otherwise(model)
    comparison = Comparison.create(compiled.program, "reference")
    elsewhere = tuple(evolve(r, device=torch.device("meta")) for r in comparison.references)
    agreement = add_module_rows(Agreement((), "tensorrt"), evolve(comparison, references=elsewhere), compiled.program)
    assert [(row.output, row.sample, row.holds) for row in agreement.rows] == [
        ("output.0", "optimal", False),
        ("output.1", "optimal", True),
    ]


def test_a_program_does_not_keep_its_module_alive() -> None:
    model = Otherwise()
    compiled, there = otherwise(model), weakref.ref(model)
    del model
    gc.collect()
    assert there() is None
    agreement = verified(compiled)
    assert agreement.module == "the module was deleted after its capture" and agreement.holds
    assert "not compared with its captured graph: the module was deleted after its capture" in str(agreement)
    assert {row.source for row in agreement.rows} == {"graph"}


class Counting(nn.Module):
    """Has state: two buffers and a number; and writes to its input."""

    count: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("last", torch.zeros(4), persistent=False)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        if not torch.compiler.is_exporting():
            self.calls += 1
        self.count += (x * self.scale).sum(0)
        self.last.copy_(x[0])
        x.mul_(2)
        return x + self.count + self.last


def test_state_is_compared_and_stays_as_it_is() -> None:
    model, x = Counting().eval(), torch.randn(2, 4)
    before, given, state = copy.deepcopy(model.state_dict()), x.clone(), torch.random.get_rng_state()
    compiled = COMPILE(model, (x,), dynamic_shapes=({0: Dim("n", min=1, max=6)},))
    agreement = verified(compiled)
    rows = [row for row in agreement.rows if row.source == "module"]
    assert agreement.holds and not agreement.module and len(rows) == 12
    assert {row.output for row in rows} == {
        "buffer count after the call",
        "buffer last after the call",
        "input x after the call",
        "output",
    }
    assert model.calls == 0 and torch.equal(x, given) and not model.last.any()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_state_that_a_call_leaves_otherwise_is_found() -> None:
    class Twice(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 4] -> [N, 4]"""
            if not torch.compiler.is_exporting():
                self.count += 1
            self.count += x.sum(0)
            return x

    model = Twice().eval()
    with pytest.warns(pipeline.AgreementWarning):
        failures = verified(COMPILE(model, (torch.randn(2, 4),))).failures
    assert [(row.output, row.source) for row in failures] == [("buffer count after the call", "module")]


def test_statistics_in_training_are_compared() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    agreement = verified(COMPILE(model, (torch.randn(8, 4),)))
    names = {row.output for row in agreement.rows if row.source == "module"}
    assert agreement.holds and {"output", "buffer 1.running_mean after the call"} < names
    assert not model.state_dict()["1.running_mean"].any()


def test_random_outputs_are_not_judged() -> None:
    model = nn.Dropout(0.5).train()
    agreement = verified(COMPILE(model, (torch.randn(4, 4),)))
    assert agreement.module == "it depends on random numbers" and agreement.holds


class Refusing(nn.Module):
    """Cannot be copied, or does not take every input, if it is told so."""

    linear: nn.Module
    shift: torch.Tensor

    def __init__(self, *, lock: bool = False, few: bool = False) -> None:
        super().__init__()
        self.linear, self.few = nn.Linear(4, 4), few
        self.register_buffer("shift", torch.ones(4))
        if lock:
            self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        if self.few and not torch.compiler.is_exporting() and bool((x > 0).any()):
            raise ValueError("negative numbers alone")
        y: torch.Tensor = self.linear(x)
        return y + self.shift


def moved(model: Refusing) -> None:
    model.shift = model.shift.clone()


def adapted(model: Refusing) -> None:
    model.linear = nn.Sequential(model.linear)


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({}, nn.Module.train, "their training mode, changed"),
        ({}, adapted, "the module's submodules, or"),
        ({}, moved, "have different weights"),
        ({"lock": True}, None, "copying the module fails: TypeError"),
        ({"few": True}, None, "the module raises ValueError: negative numbers alone (inputs: optimal)"),
    ],
)
def test_what_cannot_be_compared_says_why(options: Any, change: Any, words: str) -> None:
    model = Refusing(**options).eval()
    compiled = COMPILE(model, (torch.randn(2, 4),))
    if change is not None:
        change(model)
    agreement = verified(compiled)
    assert words in agreement.module and agreement.holds and {row.source for row in agreement.rows} == {"graph"}


def test_other_weights_are_no_difference() -> None:
    model = nn.Linear(4, 4).eval()
    made = pipeline.default()(model, (torch.randn(2, 4),))
    assert not verified(made).module
    new = pipeline.refit_module_weights(made, nn.Linear(4, 4).eval())
    assert "have different weights" in verified(new).module


def test_weights_that_are_computed_from_parameters_are_copied() -> None:
    model = nn.Linear(4, 4)
    model.plain = torch.ones(2)
    model.computed = model.weight * 2  # has a history, so that torch does not copy it
    agreement = verified(COMPILE(model.eval(), (torch.randn(2, 4),)))
    assert agreement.holds and not agreement.module


def test_equality_digests_and_pickles_have_no_module() -> None:
    model = nn.Linear(3, 3).eval()
    program = pipeline.capture(model, (torch.randn(2, 3),))
    without = evolve(program, origin=None)
    assert program == without and program.digest == without.digest and "rigin" not in repr(program)
    for copied in (copy.deepcopy(program.origin), copy.copy(program.origin)):
        assert copied.model is model
    assert pickle.loads(pickle.dumps(program.origin)).model is None


def test_an_exported_or_loaded_program_has_none(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 3).eval(), torch.randn(2, 3)
    exported = torch.export.export(model, (x,))
    assert verified(COMPILE(exported)).module.endswith("captured from an ExportedProgram: it has no module")
    made: pipeline.Compiled = (pipeline.default() | pipeline.verify(executor="reference"))(model, (x,))
    made.save(tmp_path / "made.trtp")
    with pytest.warns(pipeline.ArtifactWarning):
        loaded = pipeline.load(tmp_path / "made.trtp")
    assert loaded.agreement == made.agreement is not None
    assert {row.source for row in made.agreement.rows} == {"graph", "module"}
    assert "it has no module" in verified(loaded).module


def test_a_graph_that_a_stage_changed_is_not_compared() -> None:
    compile = COMPILE.insert(pipeline.autocast(torch.bfloat16), before="decompose")
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU()).eval()
    agreement = verified(compile(model, (torch.randn(4, 32),)))
    assert (
        agreement.module == "a stage changed the captured graph, so that the module may compute something else"
        and agreement.holds
    )


def test_autocast_around_capture_is_around_the_module() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).eval(), torch.randn(4, 64)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = COMPILE(model, (x,))
    agreement = verified(compiled)
    (row,) = (row for row in agreement.rows if row.source == "module")
    assert agreement.holds and row.error > 1e-4


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, (torch.randn(2, 4),))])
def test_torchscript_is_compared_with_what_we_read_of_it(make: Any) -> None:
    script = make(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval())
    agreement = verified(COMPILE(script, (torch.randn(2, 4),)))
    assert agreement.holds and not agreement.module and {row.source for row in agreement.rows} == {"graph", "module"}
