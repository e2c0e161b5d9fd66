"""Misuses of what is compiled, and of what changes, saves and checks it: each message says what to write."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import pipeline
from pipeline.testing import check_converter
from tests.first_hour.models import NET, X, compiled, pair, ranged
from tests.first_hour.test_misuse import Misuse, check_all

C, D, R = pipeline.compile, pipeline.default, pipeline.DYNAMO_CONVERTERS
aten, declare = torch.ops.aten, pipeline.dynamo_tensorrt_converter
PAIR: Final = {"0.lora_A.weight": torch.ones(2, 8), "0.lora_B.weight": torch.ones(4, 2)}


@pipeline.stage
def nothing(compiled: pipeline.Compiled) -> pipeline.Compiled:
    """Forget to return."""


CALLS: Final[dict[str, Misuse]] = {
    "no input": (
        lambda: compiled()(),
        "called with no positional inputs and no keywords; the program was compiled for 1",
    ),
    "two inputs": (lambda: compiled()(X, X), "called with 2 positional inputs and no keywords"),
    "another name": (lambda: compiled()(inputs=X), "not known: inputs; did you mean 'input'?"),
    "one of two": (lambda: pair()(X), "called with 1 positional input and no keywords; the program was compiled for 2"),
    "twice": (lambda: pair()(X, a=X, b=X), "input a is given twice, by position and by keyword"),
    "another default": (
        lambda: pair()(X, X, scale=3.0),
        "scale cannot be passed, as the program was compiled for its defau",
    ),
    "another size": (
        lambda: compiled()(torch.ones(5, 8)),
        "input input has size 5 in dimension 0; compiled for 4\n  hint",
    ),
    "above the range": (lambda: ranged()(torch.ones(7, 8)), "has size 7 in dimension 0; compiled for 2 to 6"),
    "an empty batch": (lambda: ranged()(torch.ones(0, 8)), "has size 0 in dimension 0; compiled for 2 to 6"),
    "another rank": (lambda: compiled()(torch.ones(8)), "input input has rank 1; compiled for 2"),
    "halves": (
        lambda: compiled()(X.half()),
        "input input is float16, expected float32: as in the compiled program\n  hint: cast it",
    ),
    "an array": (
        lambda: compiled()(X.numpy()),
        "input input is an ndarray, expected a tensor: convert it with torch.from",
    ),
    "None": (lambda: compiled()(None), "input input is None, expected a tensor"),
    "a tuple": (lambda: compiled()((X,)), "input input is a tuple, expected a tensor"),
    "on meta": (lambda: compiled()(X.to("meta")), "input input is on the meta device, without values: pass"),
    "sparse": (
        lambda: compiled()(X.to_sparse()),
        "input input has layout torch.sparse_coo, expected torch.strided",
    ),
    "eval": (lambda: compiled().eval(), "a Compiled has no .eval, which an nn.Module has: it is for inference"),
    "to": (lambda: compiled().to("cuda"), "engines run on the current GPU and take inputs from any device"),
    "half": (lambda: compiled().half(), 'with precision="float16"'),
    "parameters": (lambda: compiled().parameters(), "pipeline.refit_module_weights replaces weights"),
    "generate": (lambda: compiled().generate(X), "compile_for_generation(model, …) returns an object with generate"),
    "a misspelt attribute": (lambda: compiled().engine, "a Compiled has no .engine; did you mean 'engines'?"),
    "an attribute set": (lambda: setattr(compiled(), "engines", ()), "a Compiled is immutable, so .engines cannot be "),
    "a module in halves": (lambda: compiled().module("reference").half(), "a compiled module cannot change its d"),
    "a module elsewhere": (
        lambda: compiled().module("cuda"),
        "executor must be one of None, 'tensorrt', 'reference', got '",
    ),
    "a setting too late": (
        lambda: compiled().module(min_block_size=1),
        "min_block_size can only be set when compiling; a ",
    ),
    "a misspelt setting": (lambda: compiled().module(cuda_graph=True), "did you mean 'cuda_graphs'?"),
    "pickled": (lambda: pickle.dumps(compiled()), "to store it, use compiled.save(path) and pipeline.load(path)"),
    "in place of a tensor": (lambda: compiled().in_place_of(X), "takes the nn.Module that was compiled, got a Tensor"),
}


@cache
def saved(change: Callable[[bytes], bytes] = bytes) -> Path:
    """Return the file of a program, changed so, in the current folder."""
    compiled().save("good.trtp")
    Path("x.trtp").write_bytes(change(Path("good.trtp").read_bytes()))
    return Path("x.trtp")


FILES: Final[dict[str, Misuse]] = {
    "missing": (
        lambda: pipeline.load("none.trtp"),
        "there is no such file; create one with compiled.save(path): 'none.trtp'",
    ),
    "a folder": (
        lambda: pipeline.load("."),
        "has no file model.trtp\n  hint: pass a path that compiled.save(path) wrote",
    ),
    "half a file": (lambda: pipeline.load(saved(lambda data: data[:300])), "x.trtp is truncated or was altered"),
    "another file": (
        lambda: pipeline.load(saved(lambda data: b"ONNX")),
        "x.trtp is not a saved program\n  hint: pass a file",
    ),
    "an empty file": (lambda: pipeline.load(saved(lambda data: b"")), "x.trtp is not a saved program"),
    "a number": (lambda: pipeline.load(3), "pipeline.load takes the path of a file, got an int"),
    "an open file": (lambda: pipeline.load(io.StringIO()), "takes the path of a file, got a StringIO"),
    "one namespace": (lambda: pipeline.load(saved(), "aten"), 'expected a set of operator namespaces: pass {"aten"}'),
    "a namespace by number": (
        lambda: pipeline.load(saved(), 3),
        "operators is an int: expected a set of operator name",
    ),
    "saved to a number": (lambda: compiled().save(3), "save takes the path of a file, got an int"),
    "saved to a folder": (lambda: compiled().save("."), "is a folder: name a file in it: '.'"),
    "saved nowhere": (lambda: compiled().save("no/x.trtp"), "there is no folder to write x.trtp to: 'no'"),
    "weights as a flag": (
        lambda: compiled().save("y", weights=True),
        'weights is a bool: expected "inside", "none", or the p',
    ),
    "a report nowhere": (lambda: compiled().report("no/x.html"), "there is no folder to write x.html to: 'no'"),
    "a store of gigabytes": (
        lambda: pipeline.DiskStore(".", size="1GB"),
        "size is '1GB': expected a number of bytes",
    ),
    "a key as a path": (
        lambda: pipeline.DiskStore(".").load("../x"),
        "'../x' is not a key of an engine cache: use only",
    ),
    "a store by name": (
        lambda: pipeline.cached("folder"),
        "expected an object with the methods load(key) and save(key",
    ),
    "a protocol of nothing": (
        lambda: pipeline.FsspecStore("none://x"),
        "cannot open none://x as an engine cache: Protocol",
    ),
    "a URL by number": (lambda: pipeline.FsspecStore(3), "url is an int, expected a str such as 's3://bucket/engines'"),
}

STAGES: Final[dict[str, Misuse]] = {
    "until a misspelt one": (
        lambda: D().until("bild"),
        "refit_map, load, choose; did you mean 'build'?",
    ),
    "without one of no pipeline": (lambda: D().without("chose"), "no stage is called 'chose'; the stages are"),
    "inserted nowhere": (lambda: D().insert(nothing), "insert needs the name of a stage, either as before="),
    "inserted where it does not fit": (
        lambda: D().insert(nothing, before="build"),
        "stage 'convert' returns Converted, but",
    ),
    "left out though needed": (
        lambda: D().without("build"),
        "returns Converted, but the next stage, 'refit_map', takes",
    ),
    "a number": (lambda: D() | 3, "3 is not a stage: expected a function from one record"),
    "a module": (lambda: D() | NET, "stage 'sequential' needs a positional parameter"),
    "twice": (lambda: D() | nothing | nothing, "have the name 'nothing': exchange the first"),
    "a stage without a result": (
        lambda: (D() | nothing)(NET, (X,)),
        "stage 'nothing' returned None, but declares Compiled",
    ),
    "a stage without types": (lambda: pipeline.stage(lambda c: c), "does not declare the type of its parameter 'c'"),
    "a stage by name": (lambda: pipeline.stage("build"), "'build' is not a stage: expected a function from one"),
    "an observer by name": (
        lambda: D().observed_by("print"),
        "the observer 'print' is not callable: expected a function",
    ),
    "set": (lambda: setattr(D(), "stages", ()), "a Pipeline is immutable, so .stages cannot be set: replace, insert"),
    "called with a dict": (lambda: D()({"x": X}), "a dict cannot be compiled: it is a state dict"),
    "called with keywords": (
        lambda: D()(NET, input=X),
        "is called with (model, args, kwargs, dynamic_shapes), not",
    ),
    "autocast to integers": (
        lambda: pipeline.autocast(torch.int8),
        "takes torch.float16 or torch.bfloat16, got torch.int8",
    ),
    "autocast by name": (
        lambda: pipeline.autocast("fp16"),
        "takes a dtype, torch.float16 or torch.bfloat16, got 'fp16'",
    ),
    "a depth of a name": (lambda: pipeline.by_submodule("layer"), "pass module paths as pattern="),
    "no pieces": (
        lambda: pipeline.in_pieces(0),
        "count must be an integer of at least 1, got 0; pass module paths as b",
    ),
    "shared weights by a word": (lambda: pipeline.shared_weights("all"), "least must be a number of bytes, at least 0"),
    "quantized to int3": (lambda: pipeline.quantize("int3"), "weights must be one of 'int8', 'int4', 'fp8', got '"),
    "quantized without ranges": (
        lambda: pipeline.quantize("fp8", "fp8"),
        "hint: pass calibration=[…]: a few typical inputs",
    ),
    "calibrated with a tensor": (
        lambda: pipeline.quantize("fp8", "fp8", X),
        "a list of typical inputs, as [(x,)], got a T",
    ),
    "a percentile of 200": (
        lambda: pipeline.quantize("fp8", "fp8", [X], percentile=200),
        "above 0 and at most 100, or None",
    ),
    "excluded by number": (
        lambda: pipeline.quantize(exclude=3),
        "exclude must be a collection of operators, patterns ",
    ),
    "quantized last": (lambda: D() | pipeline.quantize(), "the next stage, 'quantize', takes Program"),
    "verified somehow": (
        lambda: pipeline.verify("ignore"),
        "on_failure must be one of 'raise', 'warn', 'heal', got 'ig",
    ),
    "verified with a tensor": (lambda: pipeline.verify(inputs=X), "that returns a list, got a Tensor"),
    "verified by a factor below 1": (lambda: pipeline.verify(multiple=-1), "multiple must be a number of at least 1"),
    "bisected by a number": (lambda: pipeline.bisect(NET, (X,), compile=3), "compile must be a pipeline, such as pi"),
    "bisected in no builds": (
        lambda: pipeline.bisect(NET, (X,), limit=0),
        "limit must be a number of builds, at least 1, ",
    ),
}

WEIGHTS: Final[dict[str, Misuse]] = {
    "a file": (
        lambda: pipeline.refit_module_weights(compiled(), "x.pt"),
        "new_weights is a str: expected a module, an Exported",
    ),
    "of another model": (
        lambda: pipeline.refit_module_weights(compiled(), nn.Linear(8, 4)),
        "0.weight: new_weights has no parameter or buffer of this name",
    ),
    "of another shape": (
        lambda: pipeline.refit_module_weights(compiled(), {"0.weight": torch.ones(4, 9), "0.bias": torch.ones(4)}),
        "0.weight: its new value is float32[4, 9], and the engine needs float32[4, 8]",
    ),
    "of a module": (lambda: pipeline.refit_module_weights(NET, NET), "compiled is a Sequential: expected the result"),
    "half an adapter": (lambda: compiled().with_lora(dict([*PAIR.items()][:1])), "one of lora_A and lora_B is missing"),
    "an adapter of another shape": (
        lambda: compiled().with_lora({**PAIR, "0.lora_A.weight": torch.ones(2, 9)}),
        "its factors do not fit: A is [2, 9], B is [4, 2], the weight is [4, 8]",
    ),
    "an adapter of nothing": (
        lambda: compiled().with_lora({f"head.{name}": factor for name, factor in PAIR.items()}),
        "head.0.lora_A.weight: the program has no such parameter",
    ),
    "a scale as text": (
        lambda: compiled().with_lora(PAIR, scale="2"),
        "expected a finite number, such as lora_alpha / r",
    ),
    "adapters as a module": (
        lambda: compiled().with_lora(NET),
        "expected PEFT's state dict, its file, or a mapping",
    ),
}


def good(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Be a converter that nothing declares."""
    return args[0]


def raising(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Be a converter with an error of its own."""
    raise ValueError("my own")


def converted(function: Any, **declared: Any) -> pipeline.Compiled:
    """Compile an activation with a converter of one's own."""
    made = declare(aten.relu.default, **declared)(lambda *given: function(*given))
    return C(nn.ReLU(), (X,), registry=R.override(made))


CONVERTERS: Final[dict[str, Misuse]] = {
    "another signature": (
        lambda: declare(aten.relu.default)(lambda ctx, args: 1),
        "a converter is called with (ctx, target, args",
    ),
    "an error": (
        lambda: converted(raising),
        "raised ValueError: my own (",
    ),
    "a module as a target": (
        lambda: declare(nn.ReLU)(good),
        "a graph has no module ReLU, only its operators: use those",
    ),
    "a function as a target": (
        lambda: declare(torch.relu)(good),
        "a graph has no torch.relu, only its operators: use those",
    ),
    "overloads as a target": (lambda: declare(aten.add)(good), "torch.ops.aten.add has 16 overloads: pass one of them"),
    "a name of no operator": (lambda: declare("aten.rellu")(good), "similar names: aten.relu"),
    "no target": (lambda: declare(good), "the target is missing: decorate good with @dynamo_tensorrt_c"),
    "a number": (
        lambda: declare(aten.relu.default)(3),
        "expected a function of (ctx, target, args, kwargs, name)",
    ),
    "a priority by name": (
        lambda: declare(aten.relu.default, priority="high")(good),
        "priority must be a ConverterPrio",
    ),
    "a validator that is none": (
        lambda: declare(aten.relu.default, capability_validator=True)(good),
        "capability_validator must be a function, got",
    ),
    "a validator without a result": (
        lambda: converted(good, capability_validator=lambda node, settings: None),
        "returned None for relu: expected True, or a reason as pipeline.Rejection(reason, hint)",
    ),
    "not declared, registered": (
        lambda: R.override(print),
        "is not a converter: decorate it with @dynamo_tensorrt_c",
    ),
    "an operator registered": (lambda: R.override(aten.relu.default), "is not a converter: decorate it with"),
    "a decomposition of nothing": (
        lambda: pipeline.register_torch_trt_decomposition("aten.rellu")(good),
        "there is no operator 'aten.rellu': expected a name as 'aten.relu",
    ),
    "one decomposition": (lambda: D(torch_disabled_decompositions="aten.silu"), "expected a collection of operators"),
    "a misspelt decomposition": (lambda: D(torch_disabled_decompositions=["aten.sillu"]), "similar names: aten.silu"),
    "support of a module": (
        lambda: pipeline.get_graph_converter_support(NET),
        "takes a torch.fx.GraphModule, not a Sequ",
    ),
    "a check of nothing": (lambda: check_converter(print), "is not a converter: decorate it"),
}

TABLES: Final = {"converters": CONVERTERS, "calls": CALLS, "files": FILES, "stages": STAGES, "weights": WEIGHTS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_each_message_says_what_to_write(
    table: dict[str, Misuse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_all(table)


def options(**given: Any) -> Any:
    """Call a module of torch.compile with these arguments."""
    torch._dynamo.reset()
    return torch.compile(NET, **{"backend": "pipeline", **given})(X)


DYNAMO: Final[dict[str, Misuse]] = {
    "a misspelt option": (lambda: options(options={"min_blok_size": 1}), "did you mean 'min_block_size'?"),
    "an option out of range": (
        lambda: options(options={"min_block_size": 0}),
        "min_block_size must be an integer at lea",
    ),
    "a precision that is none": (
        lambda: options(options={"precision": "fp8"}),
        "precision must be 'float16', 'bfloat1",
    ),
    "options by number": (lambda: options(options=3), "options is an int: pass a dict of settings"),
    "settings": (
        lambda: pipeline.backend(pipeline.CompilationSettings()),
        "backend takes a pipeline, got a Compilation",
    ),
    "a model": (
        lambda: pipeline.backend(NET),
        "backend takes a pipeline, got a Sequential: write pipeline.backend(pipel",
    ),
    "an executor": (
        lambda: pipeline.backend(executor="gpu"),
        "executor must be one of 'tensorrt', 'reference' or None",
    ),
    "stages that build nothing": (
        lambda: pipeline.backend(D().until("convert")),
        "a backend needs a pipeline that takes a",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DYNAMO)
def test_torch_compile_says_what_to_write(name: str) -> None:
    call, said = DYNAMO[name]
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        call()
    assert said in str(caught.value)
