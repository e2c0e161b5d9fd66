"""A cache of whole compilations: what is found is what would be compiled, and what cannot be told apart is compiled."""

from __future__ import annotations

import copy
import hashlib
import io
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import pipeline
from pipeline.artifact import begun, cached_program, program_key
from pipeline.artifact.engine_entry import packed, unpacked
from tests.artifact.key_programs import changed, drawn
from tests.artifact.own_operators import twice
from tests.artifact.test_cached import Memory
from tests.artifact.test_files import CASES, assert_equal

ROOT = Path(__file__).parents[2]
X = torch.randn(3, 4)


class Watched:
    """A cached pipeline, and how often it compiled."""

    def __init__(self, store: Any, compile: Any = None, **options: Any) -> None:
        self.times = 0
        inner = plain() if compile is None else compile
        self.cached = pipeline.cached(store, inner.observed_by(self._heard), **options)

    def _heard(self, event: pipeline.Event) -> None:
        self.times += (event.kind, event.stage) == ("started", "convert")

    def __call__(self, *args: Any, **kwargs: Any) -> pipeline.Compiled:
        made: pipeline.Compiled = self.cached(*args, **kwargs)
        return made


class Net(nn.Module):
    """A linear layer and an option."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.linear, self.dim = nn.Linear(4, 4), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The call."""
        return self.linear(x).softmax(self.dim)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_is_what_was_compiled(name: str) -> None:
    case = CASES[name]
    compile = Watched(Memory(), pipeline.default(**case.settings))
    made = compile(case.model, case.args, dynamic_shapes=case.dynamic_shapes)
    found = compile(case.model, case.args, dynamic_shapes=case.dynamic_shapes)
    assert compile.times == 1
    assert repr(found) == repr(made) and found.report() == made.report()
    assert list(map(bytes, found.engines)) == list(map(bytes, made.engines))
    own = dict(case.model.named_parameters())
    assert all(found.program.parameters[name] is own[name] for name in own.keys() & made.program.parameters.keys())
    assert str(found.program.source) == str(made.program.source)
    left, right = copy.deepcopy(case.args), copy.deepcopy(case.args)
    assert_equal((found(*left), left), (made(*right), right))


def test_new_values_of_weights_are_another_program(net: Net) -> None:
    compile = Watched(Memory())
    changes = (lambda: None, lambda: net.linear.weight.mul_(2), lambda: net.linear.bias.data.fill_(1))
    for times, change in enumerate(changes, 1):
        with torch.no_grad():
            change()
        torch.testing.assert_close(compile(net, (X,))(X), net(X))
        assert compile.times == times


def plain(**fields: Any) -> Any:
    """The default pipeline for small programs."""
    return pipeline.default(min_block_size=1, **fields)


RANGE = pipeline.Input(min_shape=(1, 4), max_shape=(5, 4))
IMPROVE = pipeline.stages.Improve().without("fuse_gelu")
FEWER = pipeline.DYNAMO_CONVERTERS.without(torch.ops.aten.topk.default)
CHANGES: dict[str, Any] = {
    "argument": lambda key: key(Net(0)),
    "size": lambda key: key(Net(), X[:2]),
    "dtype": lambda key: key(Net().half(), X.half()),
    "range": lambda key: key(Net(), RANGE),
    "name": lambda key: key(Net(), output_names=("scores",)),
    "setting": lambda key: key(Net(), compile=plain(immutable_weights=False)),
    "executed": lambda key: key(Net(), compile=plain(torch_executed_ops=("aten::addmm",))),
    "stage": lambda key: key(Net(), compile=plain().insert(pipeline.autocast(), before="decompose")),
    "partition": lambda key: key(Net(), compile=plain().replace("partition", pipeline.by_submodule(1))),
    "passes": lambda key: key(Net(), compile=plain().replace("improve", IMPROVE)),
    "converters": lambda key: key(Net(), compile=plain(registry=FEWER)),
    "decompositions": lambda key: key(
        Net(), compile=plain(torch_disabled_decompositions=[torch.ops.aten.gelu.default])
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_another_program(name: str, net: Net) -> None:
    found: set[str] = set()

    def key(model: Net, x: Any = X, compile: Any = None, **options: Any) -> None:
        model.load_state_dict(net.state_dict())
        compile = plain() if compile is None else compile
        program = pipeline.capture(model.eval(), (x,), settings=compile.settings, **options)
        found.add(cached_program.program_key(program, cached_program.stages_of(compile.stages)))

    key(Net())
    key(Net())
    assert len(found) == 1
    CHANGES[name](key)
    assert len(found) == 2


def test_programs_that_differ_in_one_place_have_other_keys() -> None:
    chance = random.Random(0)
    for _ in range(100):
        one = drawn(chance)
        keys = [cached_program.program_key(made.program(), []) for made in (one, one, changed(chance, one))]
        assert keys[0] == keys[1] != keys[2], one


def test_the_packages_code_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = plain().stages
    before = cached_program.stages_of(stages)
    monkeypatch.setattr(program_key, "package", lambda: "other code")
    assert cached_program.stages_of(stages) != before


products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
NUMERICS: dict[str, tuple[Callable[[Any], object], Any, Any]] = {
    "TF32 in products": (partial(setattr, products, "fp32_precision"), "tf32", "none"),
    "TF32 in products, by its older name": (torch.set_float32_matmul_precision, "high", "highest"),
    "bfloat16 in products on the CPU": (torch.set_float32_matmul_precision, "medium", "highest"),
    "no TF32 in convolutions": (partial(setattr, convolutions, "allow_tf32"), False, True),
    "sums in float16": (partial(setattr, products, "allow_fp16_accumulation"), True, False),
    "convolutions the same each time": (partial(setattr, convolutions, "deterministic"), True, False),
    "algorithms the same each time": (torch.use_deterministic_algorithms, True, False),
    "another default dtype": (torch.set_default_dtype, torch.float64, torch.float32),
}


@pytest.mark.parametrize("setting", NUMERICS)
def test_how_torch_computes_constants_is_part_of_the_key(setting: str) -> None:
    change, other, usual = NUMERICS[setting]
    change(usual)
    before = cached_program.stages_of(())
    try:
        change(other)
        assert cached_program.stages_of(()) != before
    finally:
        change(usual)
    assert cached_program.stages_of(()) == before


class Twice(nn.Module):
    """An operator of a library of one's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The call."""
        return twice(x.exp())


@pipeline.stage
def own_stage(compiled: pipeline.Compiled) -> pipeline.Compiled:
    """A stage of one's own."""
    return compiled


@pipeline.dynamo_tensorrt_converter(torch.ops.aten.exp.default)
def own_converter(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """exp(Tensor self) -> Tensor"""
    raise AssertionError("ours comes first")


OWN: dict[str, Any] = {
    "the converter .*own_converter of aten.exp.default is yours": lambda: plain(
        registry=pipeline.DYNAMO_CONVERTERS.register(own_converter)
    ),
    "own_stage is not the package's, and code has no digest": lambda: plain() | own_stage,
    "<lambda> is not the package's": lambda: plain(torch_executed_ops=(lambda path: False,)),
    "verify runs the model": lambda: plain() | pipeline.verify(),
}


@pytest.mark.parametrize("reason", OWN)
def test_what_no_digest_tells_is_compiled_with_a_warning(reason: str, net: Net) -> None:
    store = Memory()
    compile = Watched(store, OWN[reason]())
    for times in (1, 2):
        with pytest.warns(pipeline.ArtifactWarning, match=f"not taken from the cache or kept there: .*{reason}"):
            made = compile(net, (X,))
        torch.testing.assert_close(made(X), net(X))
        assert compile.times == times
    assert len(store) == 1  # the engine


def test_an_operator_of_ones_own_is_no_part_of_a_key() -> None:
    compile = Watched(Memory())
    for _ in range(2):
        with pytest.warns(pipeline.ArtifactWarning, match="the operator tests_artifact.twice.default is of tests"):
            compile(Twice(), (X,))
    assert compile.times == 2


def test_options_say_what_the_store_is_for(net: Net) -> None:
    store = Memory()
    assert Watched(store, keep=False)(net, (X,)).engines and not store
    Watched(store)(net, (X,))
    other = Watched(store, reuse=False)
    other(net, (X,))
    assert other.times == 1


def test_an_entry_that_was_altered_is_dropped(net: Net) -> None:
    store = Memory()
    Watched(store)(net, (X,))
    entries = {key: len(data) for key, data in store.items()}
    for key, size in entries.items():
        for place in (0, size // 2, size - 1):
            damaged = Memory(store)
            damaged[key] = store[key][:place] + bytes([store[key][place] ^ 1]) + store[key][place + 1 :]
            compile = Watched(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pipeline.ArtifactWarning)
                torch.testing.assert_close(compile(net, (X,))(X), net(X))
            again = Watched(damaged)
            torch.testing.assert_close(again(net, (X,))(X), net(X))
            assert again.times == 0


def test_an_engine_that_is_gone_or_another_is_built(net: Net) -> None:
    store = Memory()
    made = Watched(store)(net, (X,))
    key = made.engines[0].key
    store.pop(key)
    compile = Watched(store)
    torch.testing.assert_close(compile(net, (X,))(X), net(X))
    assert compile.times == 1 and key in store
    store[key] = _other_plan(store[key], key)
    compile = Watched(store)
    torch.testing.assert_close(compile(net, (X,))(X), net(X))
    assert compile.times == 1


def _other_plan(data: bytes, key: str) -> bytes:
    """The entry of a key with another plan: what another build of the same network may have left."""
    entry, plan = unpacked(io.BytesIO(data), len(data), key)
    other = bytes(plan) + b"other"
    return b"".join(packed(evolve(entry, digest=hashlib.sha256(other).hexdigest()), other))


def test_engines_that_are_known_to_be_wrong_are_told_each_time(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_program, "faults", lambda network, plan: [("kernel", "never writes output")])
    store = Memory()
    compile = Watched(store)
    for times in (1, 2):
        compile(net, (X,))
        assert compile.times == times and len(store) == 1  # the engine, whose stage warns


def test_hints_are_guesses(net: Net) -> None:
    store = Memory()
    made = Watched(store)(net, (X,))
    (hint,) = (key for key, data in store.items() if data == begun.hint_of([made.engines[0].key]))
    for guess in (b"", b"no JSON", b"[1]", b'["0"]', begun.hint_of([hint, *store])):
        store[hint] = guess
        compile = Watched(store)
        torch.testing.assert_close(compile(net, (X,))(X), net(X))
        assert compile.times == 0


def test_what_is_written_to_while_it_is_captured_is_hashed_again(net: Net) -> None:
    started = begun.Begun.of(net, Memory(), "")  # type: ignore[arg-type]
    before = started.known(net.linear.weight)
    assert before is not None and started.known(net.linear.weight.clone()) is None
    with torch.no_grad():
        net.linear.weight.add_(1)
    assert started.known(net.linear.weight) is None
    started.end()


def test_a_program_that_was_found_is_refitted_and_verified(net: Net) -> None:
    store = Memory()
    Watched(store)(net, (X,))
    compile = Watched(store)
    found = compile(net, (X,))
    assert compile.times == 0
    other = Net().eval()
    torch.testing.assert_close(pipeline.refit_module_weights(found, other.state_dict())(X), other(X))
    checked = (compile.cached | pipeline.verify())(net, (X,))
    assert checked.agreement is not None and compile.times == 0
    with pytest.raises(pipeline.PipelineError, match="no converters to compile parts of it again"):
        pipeline.bisect(found)


ROWS = """
import torch, pipeline
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.BatchNorm1d(4)).eval()
args, dims = (pipeline.Input(min_shape=(1, 4), max_shape=(4, 4)),), None
"""
IMAGES = """
import torch, pipeline
from torch.export import Dim

class Padded(torch.nn.Module):
    def forward(self, image):
        h, w = image.shape[2] // 8, image.shape[3] // 8
        padded = torch.nn.functional.pad(image, (0, (8 - w % 8) % 8, 0, (8 - h % 8) % 8))
        return padded.mean((2, 3)), padded[:, :, ::8, ::8]

model, args = Padded().eval(), (torch.ones(2, 3, 32, 48),)
dims = ({0: Dim("b", min=1, max=4), 2: 8 * Dim("h", min=2, max=9), 3: 8 * Dim("w", min=2, max=9)},)
"""


@pytest.mark.parametrize("setup", [ROWS, IMAGES], ids=["rows", "sizes that are multiples"])
def test_another_process_finds_the_program(setup: str, tmp_path: Path) -> None:
    code = f"""{setup}
times = []
inner = pipeline.default(min_block_size=1).observed_by(lambda e: times.append(e.stage))
compile = pipeline.cached(pipeline.DiskStore("engines"), inner)
compile(model, args, dynamic_shapes=dims)
print("convert" in times)
"""
    told = []
    for seed in ("1", "2", "8"):
        environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "PATH": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        told.append(done.stdout or done.stderr)
    assert told == ["True\n", "False\n", "False\n"]
