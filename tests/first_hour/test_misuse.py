"""Misuses of what compiles a model: each message names what was found, what was expected, and what to write."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import torch
from torch import nn

import pipeline
from tests.first_hour.models import NET, ROWS, Branching, Pair, Says, X, compiled, failing

Misuse: TypeAlias = tuple[Callable[[], Any], str]
C, D, S = pipeline.compile, pipeline.default, pipeline.CompilationSettings
Input: TypeAlias = pipeline.Input
N: Final = torch.export.Dim("n", max=8)
OURS: Final = str(Path(str(pipeline.__file__)).parent)

MODELS: Final[dict[str, Misuse]] = {
    "a class": (lambda: C(nn.ReLU, (X,)), "the class ReLU (an instance is ReLU(…)) cannot be compiled: pass an nn.M"),
    "a function": (
        lambda: C(torch.relu, (X,)),
        "the function relu cannot be compiled: pass an nn.Module whose forward",
    ),
    "a name": (lambda: C("resnet50", (X,)), "a str cannot be compiled: pass an nn.Module, or the path of an ONNX"),
    "nothing": (lambda: C(None, (X,)), "None cannot be compiled: pass an nn.Module"),
    "weights": (lambda: C(NET.state_dict(), (X,)), "an OrderedDict cannot be compiled: it is a state dict"),
    "the inputs first": (lambda: C(X, NET), "a Tensor cannot be compiled: pass the model first, then its inputs"),
    "a program": (lambda: C(compiled(), (X,)), "a Compiled cannot be compiled: it is compiled already; pass an nn.Mod"),
    "on meta": (lambda: C(nn.Linear(8, 4, device="meta"), (X,)), "weight is on the meta device"),
    "halves and floats": (
        lambda: C(nn.Sequential(nn.Linear(8, 4).half(), nn.Linear(4, 2)), (X.half(),)),
        "the model has a dtype error: aten.linear.default (linear.py",
    ),
    "default called with it": (
        lambda: D(NET, args=(X,)),
        "takes settings, got a model, a Sequential: write pipeline.c",
    ),
    "default called with inputs": (lambda: D(args=(X,)), "pipeline.compile(model, args=(x,)"),
    "default called with an Input": (lambda: D(ROWS), "must be CompilationSettings, got an Input: pass settings"),
    "default called with a dict": (lambda: D({"min_block_size": 1}), "as pipeline.default(**settings)"),
    "exported for another size": (
        lambda: C(torch.export.export(NET, (X,)), (torch.ones(5, 8),)),
        "input input was exported as 4x8:float32, not 5x8:float32",
    ),
    "exported, with other ranges": (
        lambda: C(torch.export.export(NET, (X,)), (X,), dynamic_shapes=({0: N},)),
        "dynamic_shapes cannot change an ExportedProgram",
    ),
    "a str captured": (lambda: pipeline.capture("x", (X,)), "model must be an nn.Module, an Exported"),
    "a number recorded": (lambda: pipeline.recorded(3).__enter__(), "recorded takes an nn.Module, got an int"),
}

INPUTS: Final[dict[str, Misuse]] = {
    "none": (lambda: C(NET), "missing a required argument: 'input'; pass its inputs: args=(x,), or kwargs={…} by name"),
    "a tensor as args": (lambda: C(NET, X), "args is a Tensor: pass a tuple of inputs, such as args=(x,)"),
    "a generator as args": (lambda: C(NET, iter([X])), "args is a list_iterator: pass a tuple of inputs"),
    "a dict as args": (lambda: C(NET, {"input": X}), "args is a dict: pass a tuple"),
    "an Input as args": (lambda: C(NET, ROWS), "args is an Input: pass a tuple"),
    "a text as args": (lambda: C(NET, "4x8"), "args is a str: pass a tuple"),
    "a tuple as kwargs": (
        lambda: C(NET, kwargs=(X,)),
        'kwargs is a tuple: pass a dict of inputs by name, such as {"x"',
    ),
    "sizes as args": (
        lambda: C(NET, (4, 8)),
        "(4, 8) are numbers; for a tensor of this shape, pass args=(pipeline.Inp",
    ),
    "four sizes as args": (lambda: C(nn.Conv2d(3, 8, 3), (1, 3, 8, 8)), "args=(pipeline.Input(shape=(1, 3, 8, 8)),)"),
    "a size of torch as args": (lambda: C(NET, X.shape), "pipeline.Input(shape=(4, 8))"),
    "a shape": (
        lambda: C(NET, ((4, 8),)),
        "input input is (4, 8), and the model expects a tensor\n  hint: for a tensor ",
    ),
    "a list of sizes": (
        lambda: C(NET, ([4, 8],)),
        "input is [4, 8], and the model expects a tensor\n  hint: for a tens",
    ),
    "a shape of torch": (lambda: C(NET, (X.shape,)), "hint: for a tensor of this shape, pass pipeline.Input("),
    "shapes by name": (
        lambda: C(Pair(), kwargs={"a": (4, 8), "b": (4, 8)}),
        "input a is (4, 8), and the model expects",
    ),
    "a shape in a list": (lambda: C(Says(lambda x: x[0].relu()), ([(4, 8)],)), "input x[0] is (4, 8), and the model"),
    "a number": (lambda: C(NET, (4,)), "input input is 4, and the model expects a tensor\n  hint: convert it to a ten"),
    "numbers in lists": (lambda: C(NET, ([[1.0] * 8] * 4,)), "input input is a list, and the model expects a tensor"),
    "a text": (
        lambda: C(NET, ("4x8",)),
        "input input is '4x8', and the model expects a tensor\n  hint: pipeline.Input.pa",
    ),
    "an array": (
        lambda: C(NET, (X.numpy(),)),
        "input input is an ndarray, which torch.export does not take\n  hint: pas",
    ),
    "the class Input": (lambda: C(NET, (pipeline.Input,)), "input input is the class Input"),
    "a module": (lambda: C(NET, (NET,)), "a Sequential is among the inputs: make the module an attribute"),
    "too many": (
        lambda: C(NET, (X, X)),
        "Sequential.forward(input) rejects the inputs: too many positional arguments; g",
    ),
    "too few": (
        lambda: C(Pair(), (X,)),
        "Pair.forward(a, b, scale) rejects the inputs: missing a required argument: 'b'",
    ),
    "an unknown name": (lambda: C(Pair(), (X,), {"scal": X}), "there is no input 'scal': did you mean"),
    "on meta": (lambda: C(NET, (X.to("meta"),)), "input input is on meta, the model is on cpu"),
    "another dtype": (lambda: C(NET, (X.long(),)), "input input is int64, expected float32: aten.linear.default (lin"),
    "another dtype of an index": (lambda: C(nn.Embedding(9, 4), (X,)), "input input is float32, expected int64"),
    "another size": (
        lambda: C(NET, (torch.ones(4, 9),)),
        "but got [4, 9] X [8, 4].\n  hint: if model(*args) fails too, correct the inpu",
    ),
    "ranges for no input": (
        lambda: C(NET, (X,), dynamic_shapes={"rows": {0: N}}),
        "has 'rows', but Sequential has the inp",
    ),
    "ranges as pairs": (lambda: C(NET, (X,), dynamic_shapes=({0: (1, 8)},)), "is (1, 8): expected torch.export.Dim"),
    "ranges as a name": (
        lambda: C(NET, (X,), dynamic_shapes="batch"),
        "dynamic_shapes is a str: pass a dict by the name",
    ),
    "a range for no dimension": (
        lambda: C(NET, (X,), dynamic_shapes=({5: N},)),
        "has dimension 5, but this input has rank 2",
    ),
    "a range of a fixed size": (lambda: C(NET, (X,), dynamic_shapes=({1: N},)), "Sequential specializes dynamic sizes"),
    "a range without the example": (
        lambda: C(NET, (torch.ones(9, 8),), dynamic_shapes=({0: N},)),
        "input input has size 9 in dimension 0, but n allows 0 to 8\n  hint: pass an example whose size is in the",
    ),
    "a range given twice": (
        lambda: C(NET, (ROWS,), dynamic_shapes=({0: N},)),
        "dimension 0 of input input has two ranges",
    ),
    "profiles that are none": (
        lambda: C(NET, (X,), profiles=[(1, 2)]),
        "dynamic_shapes has 2 entries, expected 1, for",
    ),
    "names of no outputs": (
        lambda: C(NET, (X,), output_names=["a", "b"]),
        "output_names has 2 names, but the model has 1 output",
    ),
    "one name as outputs": (
        lambda: C(NET, (X,), output_names="a"),
        'expected a sequence of names, such as ("logits",)',
    ),
    "a name of outputs twice": (lambda: C(Pair(), (X, X), output_names=["a", "a"]), "has the name 'a' twice"),
}

SETTINGS: Final[dict[str, Misuse]] = {
    "a misspelt argument": (lambda: C(NET, arg=(X,)), "has no argument 'arg'; did you mean"),
    "a misspelt setting": (lambda: C(NET, (X,), min_block=1), "did you mean 'min_block_size'?"),
    "a misspelt executor": (lambda: D(build_executer=None), "did you mean 'build_executor'?"),
    "a misspelt precision": (lambda: C(NET, (X,), precison="fp16"), "did you mean 'precision'?"),
    "a precision that is none": (
        lambda: C(NET, (X,), precision="fp8"),
        "precision must be 'float16', 'bfloat16' or 'flo",
    ),
    "a list of precisions": (lambda: C(NET, (X,), precision=["fp16"]), "(fp16, bf16, fp32), got ['fp16']"),
    "enabled_precisions": (lambda: C(NET, (X,), enabled_precisions={torch.half}), 'pass precision="float16"'),
    "fp16": (lambda: C(NET, (X,), fp16=True), 'is not a compilation setting; pass precision="float16"'),
    "inputs": (lambda: C(NET, inputs=[X]), "inputs are given to the call: pipeline.compile(model, args=(x,)"),
    "ir": (lambda: C(NET, (X,), ir="dynamo"), "there is one front end: torch.export captures modules"),
    "a dict": (lambda: C(NET, (X,), settings={"a": 1}), "settings must be CompilationSettings, got a "),
    "a registry of functions": (lambda: D(registry={}), "registry must be a ConverterRegistry, got a dict; Converter"),
    "an executor by name": (lambda: D(build_executor="reference"), "must be a concurrent.futures.Executor, such as T"),
    "a field that is misspelt": (
        lambda: S(min_blok_size=1),
        "'min_blok_size' is not a field of CompilationSettings; did yo",
    ),
    "a field of Torch-TensorRT": (lambda: S(use_python_runtime=True), "there is one runtime, in Python"),
    "a field of nothing": (
        lambda: S(colour="red"),
        "'colour' is not a field of CompilationSettings; pipeline.CompilationS",
    ),
    "by position": (lambda: S(1), "got an int by position: settings are given by name, as min_block_size=1"),
    "a field that is set": (
        lambda: setattr(S(), "device", "cuda"),
        "cannot be set: settings.evolve(name=value) returns",
    ),
    "a misspelt field of a copy": (lambda: S().evolve(cuda_graph=True), "did you mean 'cuda_graphs'?"),
    "a text as an integer": (lambda: S(min_block_size="1"), "min_block_size must be an integer at least 1, go"),
    "gigabytes": (
        lambda: S(workspace_size="1GB"),
        "workspace_size must be an integer from 0 to 9223372036854775807, or",
    ),
    "a word as a flag": (lambda: S(require_full_compilation="yes"), "must be True or False, got "),
    "a level too high": (
        lambda: S(optimization_level=7),
        "optimization_level must be an integer from 0 to 5, or None, got 7",
    ),
    "one operator": (lambda: S(torch_executed_ops="aten.topk"), "must be a collection of operators, names or predicat"),
    "an operator that is none": (
        lambda: S(torch_executed_ops=["aten.topkk"]),
        "'aten.topkk'; did you mean 'aten.topk'?",
    ),
    "an overload that is none": (
        lambda: S(torch_executed_ops=["aten.add.tensor"]),
        "no operator 'aten.add.tensor'; did you mean 'aten.add.Tensor'?",
    ),
    "a function of torch": (
        lambda: S(torch_executed_ops=[torch.topk]),
        "torch.topk is no operator: pass those that it",
    ),
    "a module": (lambda: S(torch_executed_ops=[nn.Linear]), "Linear is no operator: pass t"),
    "a capability as a number": (lambda: S(compute_capabilities=[8.6]), '8.6 is not a string such as "8.6"'),
    "a capability of nvcc": (lambda: S(compute_capabilities=["sm_86"]), "'sm_86' is not of the form \"8.6\""),
    "one capability": (lambda: S(compute_capabilities="8.6"), 'must be a collection such as ("8.6", "12.0"), g'),
    "a word close to one": (lambda: S(decisions="examples"), "got 'examples'; did you mean 'example'?"),
    "a word in capitals": (lambda: S(kernel_specialization="Lazy"), "did you mean 'lazy'?"),
    "a device by number": (lambda: S(device=0), "device must be 'cuda', 'cpu' or None, got 0"),
    "a second device": (lambda: S(device="cuda:1"), "got 'cuda:1'; engines run on the current CUDA device"),
    "a folder by number": (lambda: S(engine_cache_dir=3), "engine_cache_dir must be a folder, an fsspec URL or None, "),
    "no folder": (lambda: S(engine_cache_dir=""), "engine_cache_dir must be a folder, an fsspec URL or None, got ''"),
    "no path": (lambda: S(runtime_cache=""), "runtime_cache must be True, False or a path, got ''"),
    "one pattern": (lambda: S(refittable_weights="layers.*"), 'must be a collection such as ("layers.0.*",), g'),
}

DESCRIBED: Final[dict[str, Misuse]] = {
    "a tensor": (lambda: Input(X), "got a tensor: use pipeline.Input.from_tenso"),
    "a name as a size": (
        lambda: Input(("batch", 8)),
        "shape[0] must be an integer, got 'batch'; for a dynamic size, pass",
    ),
    "None as a size": (lambda: Input((None, 8)), "got None; for a dynamic size, pass min_shape and max_shape"),
    "minus one": (lambda: Input((-1, 8)), "shape[0] is negative (-1); for ranges use min_shape and max_sh"),
    "a fraction": (lambda: Input((4.0, 8)), "Input: shape[0] must be an integer, go"),
    "sizes by position": (
        lambda: Input(4, 8),
        "got an int, an int by position: Input(shape, dtype=…) takes one shape",
    ),
    "a dtype by position": (lambda: Input((4, 8), torch.half), "got a tuple, a dtype by position"),
    "one size": (lambda: Input(4), "Input: shape must be a sequence of sizes, "),
    "ranks that differ": (lambda: Input(min_shape=(1, 8), max_shape=(8,)), "min_shape has rank 2 and max_shape rank 1"),
    "a range backwards": (
        lambda: Input(min_shape=(8, 8), max_shape=(1, 8)),
        "in dim 0, min_shape is 8 and max_shape 1",
    ),
    "an optimum outside": (
        lambda: Input(min_shape=(1, 8), opt_shape=(9, 8), max_shape=(8, 8)),
        "opt_shape is 9 and max_shape 8; need min <= opt <= m",
    ),
    "half a range": (
        lambda: Input(min_shape=(1, 8)),
        "min_shape and max_shape must be given; for a static shape, write Inp",
    ),
    "a shape and a range": (
        lambda: Input((4, 8), min_shape=(1, 8), max_shape=(8, 8)),
        "give either shape, or min_shape",
    ),
    "nothing": (lambda: Input(), "shape, or min_shape and max_shape must be given"),
    "a dtype by name": (lambda: Input((4, 8), dtype="float16"), "dtype must be a torch.dtype, got 'float16'; write to"),
    "a name with a space": (lambda: Input((4, 8), name="my input"), "name must be a Python identifier, got 'my i"),
    "a device by another name": (lambda: Input((4, 8), device="gpu"), "a name (cuda, cuda:1, cpu), got 'gpu'"),
    "a format": (
        lambda: Input((4, 8), format="nhwc"),
        "'format' is not a field of Input; programs take inputs of any strides",
    ),
    "a misspelt range": (lambda: Input(min_shape=(1,), optshape=(2,), max_shape=(4,)), "did you mean 'opt_shape'?"),
    "one profile": (
        lambda: Input(profiles=((1,), (2,), (4,))),
        "each profile must be (min_shape, opt_shape, max_shape), got (1,)",
    ),
    "commas": (lambda: Input.parse("4,8"), "'4,8' is not a size; write [NAME=]DIMxDIM…[:DTYPE][@DEVICE]"),
    "a dtype that is none": (
        lambda: Input.parse("4x8:fp12"),
        "'fp12' is not a dtype; use torch's names (float16, int64, b",
    ),
    "a shape as a tensor": (
        lambda: Input.from_tensor((4, 8)),
        "takes a tensor, got a tuple; for a shape, use Input(shape)",
    ),
    "a constant of text": (lambda: pipeline.Constant("a"), "value must be a tensor, or numbers in lists, got "),
    "a constant too large": (lambda: pipeline.Constant(torch.zeros(1 << 17)), "has 131072 elements, more than 65536"),
    "a ragged constant": (
        lambda: pipeline.Constant([[1], [1, 2]]),
        "numbers in lists of equal lengths: expected sequence",
    ),
}

CAPTURED: Final[dict[str, Misuse]] = {
    "a branch on data": (lambda: C(Branching(), (X,)), "Branching branches on a tensor's value, which is unknown unt"),
    "a loop on data": (
        lambda: C(Says(lambda x: [x for _ in range(int(x[0, 0]))]), (X,)),
        'decisions="example" takes the branches of this example',
    ),
    "an error of its own": (lambda: C(Says(failing), (X,)), "raise KeyError(\"vocabulary\"): KeyError: 'vocabulary'"),
    "an object as its result": (
        lambda: C(Says(lambda x: object()), (X,)),
        "returns a object, which torch.export does not",
    ),
    "eigenvalues, with full compilation": (
        lambda: C(Says(lambda x: torch.linalg.eigvals(x @ x.T)), (X,), require_full_compilation=True),
        "1 of 3 nodes would run in PyTorch\n  aten.linalg_eig.default at node",
    ),
    "float64, with full compilation": (
        lambda: C(Says(lambda x: x.double().sin()), (X,), require_full_compilation=True),
        "hint: pass truncate_double=True to compute it in float32",
    ),
    "nothing, with full compilation": (
        lambda: C(nn.Identity(), (X,), require_full_compilation=True),
        "no operator of the model is left for an engine",
    ),
    "no quantized layer": (
        lambda: C(NET, (X,), require_fused_quantization=True),
        "quantize the model first (pipeline.qu",
    ),
}


TABLES: Final = {"models": MODELS, "inputs": INPUTS, "settings": SETTINGS, "described": DESCRIBED, "captured": CAPTURED}


def check(call: Callable[[], Any], said: str) -> None:
    """Expect an error of ours that says this; it is raised in the package, not in a library below it."""
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError, OSError, pipeline.PipelineError)) as caught:
        call()
    assert said in str(caught.value)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename.startswith(OURS)


def check_all(table: dict[str, Misuse]) -> None:
    """Check each row; an error has its name."""
    for name, (call, said) in table.items():
        try:
            check(call, said)
        except (AssertionError, pytest.fail.Exception) as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_each_message_says_what_to_write(table: dict[str, Misuse]) -> None:
    check_all(table)
