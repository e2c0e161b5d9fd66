"""Torch-TensorRT's tests of models: pytest's files of ``tests/py/dynamo/hlo``, ``models`` or ``runtime``, in the folder
that ``--source`` names. Weights are random.

A test compiles a model by ``torch_tensorrt.compile``, ``torch_tensorrt.dynamo.compile`` or ``torch.compile``, calls it,
and asserts that the results are eager's. A stand-in compiles it by us, for the reference executor, and the test's own
assertions decide. A test that calls anything else of Torch-TensorRT is no case.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import register_backend
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

import pipeline
from benchmarks.suites.judge import Case, Row, said
from benchmarks.suites.torch_tensorrt import PEER, Input, on_cpu, stand_ins, version
from pipeline.errors import CaptureError, UnsupportedOperatorException
from pipeline.stages.unbuilt import unbuilt

__all__ = ["cases", "version"]

CONFTEST = 'import pytest\n\n\n@pytest.fixture(params=["dynamo"])\ndef ir(request):\n    return request.param\n'
NOT_OURS = re.compile(
    "requires CUDA|not compiled with CUDA|Expected `mod` to be an instance of `torch.nn.Module`"
    "|No such file .*([.]ep|_cached_engine)'|Python-only subprocess"
)
"""Errors of a test that asks for a GPU, exports the compiled module again, or reads files of other formats."""
SETTINGS = ("min_block_size", "torch_executed_ops", "require_full_compilation")
THEIRS = {"output_format", "enable_autocast", "strip_engine_weights", "engine_cache_dir"}
SUFFIX = ".trtp"
CAPABILITY = (9, 0)
"""That of the GPU that the tests are told of: some ask for it when they are imported."""
BEYOND = {
    "test_hf_static_cache_xfail.py::TestHFStaticCacheCurrentLimitations::test_compile_fails_with_known_error": "it"
    " asserts the words of an error of Torch-TensorRT",
    "test_dtype_support.py::TestBF16Support::test_bf16_torch_compile": "eager adds the bias before it rounds to"
    " bfloat16, the reference executor after: the test asserts less than a unit in the last place",
    "test_reexport.py::test_save_with_kwarg_inputs_dynamic[dynamo]": "it passes a keyword input by position",
    "test_export_serde.py::test_save_load_ts[dynamo]": "it asserts the type of Torch-TensorRT's modules",
    "test_export_serde.py::test_save_load_aoti[dynamo]": "it asserts the type of Torch-TensorRT's modules",
}
"""What tests assert that no result has to hold, by their names."""
_programs: list[pipeline.Compiled] = []
_begun: list[str] = []
"""What our compiler was called for in this test: later errors are ours, unless they name what is theirs."""


class TheirsError(Exception):
    """A test calls what only Torch-TensorRT has."""


class Theirs:
    """A name of Torch-TensorRT that the stand-in does not have: it may be passed on, but not called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Theirs:
        return KNOWN[name] if name in KNOWN else Theirs(f"{self.name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TheirsError(self.name)


class Module:
    """A compiled model, which a test may call and save. What else the modules of Torch-TensorRT have is theirs."""

    def __init__(self, compiled: pipeline.Compiled) -> None:
        self.compiled, self.module = compiled, compiled.module("reference")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            raise TheirsError("the fake kernel of engines")
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise TheirsError(f"the compiled model's {name}")


def compile(
    model: Any,
    *given: Any,
    ir: str = "dynamo",
    inputs: Sequence[Any] = (),
    arg_inputs: Sequence[Any] = (),
    kwarg_inputs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return a model compiled by us, as Torch-TensorRT's functions are called. ``given``: ``ir`` or the inputs."""
    for each in given:
        ir, inputs = (each, inputs) if isinstance(each, str) else (ir, each)
    inputs = (inputs,) if isinstance(inputs, Input | torch.Tensor) else inputs
    if ir == "torch_compile":
        return torch.compile(model, backend=partial(backend, options=options))
    if ir not in ("dynamo", "default") or THEIRS & options.keys():
        raise TheirsError(f"ir={ir}, {', '.join(THEIRS & options.keys())}")
    ours = compiler(options)
    args, kwargs = tree_map(
        lambda leaf: leaf.ours if isinstance(leaf, Input) else leaf,
        (tuple(inputs or arg_inputs), dict(kwarg_inputs or {})),
    )
    try:
        program = pipeline.capture(model, args, kwargs)
    except ValueError as error:  # sizes that the export does not have
        raise CaptureError(str(error)) from error
    compiled: pipeline.Compiled = ours(program)
    return Module(compiled)


def trace(model: Any, *_: Any, **__: Any) -> Any:
    """Return the model: `compile` captures it, with the inputs that it is given."""
    return model


def save(module: Any, path: Any, *_: Any, output_format: str = "exported_program", **__: Any) -> None:
    """Save a compiled model in our format."""
    if not isinstance(module, Module) or output_format != "exported_program":
        raise TheirsError(f"save of {type(module).__name__} as {output_format}")
    module.compiled.save(f"{path}{SUFFIX}")


class Saved:
    """A file, as an exported program whose module the tests call."""

    def __init__(self, path: Any) -> None:
        if not Path(f"{path}{SUFFIX}").exists():
            raise TheirsError("load of another format")
        self.path = f"{path}{SUFFIX}"

    def module(self) -> Module:
        """Load the program."""
        return Module(pipeline.load(self.path))


def compiler(options: Mapping[str, Any]) -> Any:
    """Return our compiler with those of a test's options that say what an engine may have; programs are noted."""

    def note(event: pipeline.Event) -> None:
        if event.kind == "finished" and event.stage == "refit_map":
            _programs.append(event.record)

    _begun.append("compile")
    compile = pipeline.default(**{name: options[name] for name in SETTINGS if name in options})
    return compile.replace("build", unbuilt).observed_by(note)


def backend(graph: torch.fx.GraphModule, tensors: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """Compile a graph of ``torch.compile(backend="torch_tensorrt")``."""
    ours = pipeline.backend(compiler(options or {}), executor="reference")
    call = ours(graph, tensors)
    if ours.refused:
        raise CaptureError("; ".join(ours.refused))
    return call


def similar(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine of two results; 1 for two without a norm."""
    a, b = (value.detach().flatten().double() for value in (one, other))
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else float(torch.equal(a, b))


KNOWN: Mapping[str, Any] = {
    "compile": compile,
    "trace": trace,
    "save": save,
    "load": Saved,
    "prepare_inputs": lambda inputs, *_, **__: tree_map(lambda leaf: leaf, inputs),
    "get_model_device": lambda _: torch.device("cpu"),
    "Input": Input,
    "Device": lambda *_, **__: None,
    "cosine_similarity": similar,
    "COSINE_THRESHOLD": 0.99,
    "DECIMALS_OF_AGREEMENT": 4,
    "debug": nullcontext,
    "Debugger": lambda *_, **__: nullcontext(),
    "has_complex_decomposition": lambda: False,
    "is_tensorrt_rtx": lambda: False,  # what skips tests, and widens tolerances
}


def cases(source: Path) -> Iterator[Case]:
    """Yield a case for each test in the files of a folder."""
    stand_ins(KNOWN, Theirs)
    torch.cuda.get_device_capability = lambda *_: CAPABILITY
    with suppress(AssertionError):  # an earlier call has registered it
        register_backend(backend, PEER)
    folder = Path(tempfile.mkdtemp(prefix="peer-models-"))
    (folder / "conftest.py").write_text(CONFTEST)
    for path in sorted(source.glob("test_*.py")):
        text = on_cpu(path.read_text("utf-8")).replace("pretrained=True", "pretrained=False")
        if "DispatchTestCase" in text:  # the converter tests' harness judges it
            continue
        text = text.replace("import tensorrt as trt", "import tensorrt_rtx as trt")
        (folder / path.name).write_text(text.replace("from ..", f"from {PEER}.").replace('"tensorrt"', f'"{PEER}"'))
    collected = Collected()
    _run(folder, ["--collect-only", str(folder)], collected)
    for name in collected.names:
        yield Case(name, partial(_judge, folder, name))
    for name, reason in collected.failed.items():
        yield Case(name, partial(dict, outcome="no case", reason=f"it is not imported: {reason}"))


class Collected:
    """A plugin of pytest that notes what is collected, and what is not imported."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failed: dict[str, str] = {}

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that is not imported."""
        if not report.passed:
            self.failed[report.nodeid] = str(report.longrepr)[-200:]

    def pytest_collection_finish(self, session: Any) -> None:
        """Note the tests."""
        self.names += [item.nodeid for item in session.items]


class Outcome:
    """A plugin of pytest that notes how a test ends."""

    def __init__(self) -> None:
        self.row: Row = {"outcome": "no case", "reason": "it did not run"}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note that a test passed, or was skipped."""
        if report.when == "call" and report.passed:
            self.row = {"outcome": "right"}
        elif report.skipped:
            self.row = {"outcome": "no case", "reason": str(report.longrepr)[-200:]}

    def pytest_exception_interact(self, call: Any) -> None:
        """Note why a test failed."""
        error = call.excinfo.value
        refused = isinstance(error, CaptureError | UnsupportedOperatorException)
        theirs = isinstance(error, TheirsError) or NOT_OURS.search(str(error)) or not (_begun or refused)
        self.row = {
            "outcome": "refused" if refused else "no case" if theirs else "wrong",
            "reason": f"{type(error).__name__}: {said(error)}",
        }


def _judge(folder: Path, name: str) -> Row:
    """Run a test; return its row, with what runs in PyTorch."""
    if name in BEYOND:
        return {"outcome": "no case", "reason": BEYOND[name]}
    _programs.clear()
    _begun.clear()
    outcome = Outcome()
    torch.manual_seed(3)
    _run(folder, [str(folder / name)], outcome)
    row = outcome.row
    if row["outcome"] == "right":
        if not _programs:
            return {"outcome": "no case", "reason": "it compiles no model"}
        row["operators"] = sum(each.coverage.total for each in _programs)
        row["in_pytorch"] = {f"{f.target}: {f.reason}": 1 for each in _programs for f in each.coverage.fallback}
    return row


def _run(folder: Path, arguments: Sequence[str], plugin: object) -> None:
    before = list(sys.path)
    torch._dynamo.reset()
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:logging",
        "--continue-on-collection-errors",
        "--rootdir",
        str(folder),
        "-c",
        "/dev/null",
    ]
    try:
        pytest.main([*options, "--no-header", "--tb=no", *arguments], plugins=[plugin])
    finally:
        sys.path[:] = before
        for each in [each for each in sys.modules if each.partition(".")[0].startswith(("test_", "conftest"))]:
            del sys.modules[each]
