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
        "takes settings, not the model, a Sequential: write pipeline.c",
    ),
    "default called with inputs": (lambda: D(args=(X,)), "pipeline.compile(model, args=(x,)"),
    "default called with an Input": (lambda: D(ROWS), "settings are CompilationSettings, not an Input: give fields by"),
    "default called with a dict": (lambda: D({"min_block_size": 1}), "as pipeline.default(**settings)"),
    "exported for another size": (
        lambda: C(torch.export.export(NET, (X,)), (torch.ones(5, 8),)),
        "input input was exported as 4x8:float32, not 5x8:float32",
    ),
    "exported, with other ranges": (
        lambda: C(torch.export.export(NET, (X,)), (X,), dynamic_shapes=({0: N},)),
        "dynamic_shapes cannot change an ExportedProgram",
    ),
    "a str captured": (lambda: pipeline.capture("x", (X,)), "model is a str: pass an nn.Module"),
    "a number recorded": (lambda: pipeline.recorded(3).__enter__(), "recorded takes an nn.Module, not an int"),
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
        "(4, 8) are numbers: args=(pipeline.Input(shape=(4, 8)),) stands for a t",
    ),
    "four sizes as args": (lambda: C(nn.Conv2d(3, 8, 3), (1, 3, 8, 8)), "args=(pipeline.Input(shape=(1, 3, 8, 8)),)"),
    "a size of torch as args": (lambda: C(NET, X.shape), "pipeline.Input(shape=(4, 8))"),
    "a shape": (
        lambda: C(NET, ((4, 8),)),
        "input input is (4, 8), and the model expects a tensor\n  hint: pipeline.Input(",
    ),
    "a list of sizes": (
        lambda: C(NET, ([4, 8],)),
        "input is [4, 8], and the model expects a tensor\n  hint: pipeline.I",
    ),
    "a shape of torch": (lambda: C(NET, (X.shape,)), "hint: pipeline.Input(shape=(4, 8)) stands for a tensor"),
    "shapes by name": (
        lambda: C(Pair(), kwargs={"a": (4, 8), "b": (4, 8)}),
        "input a is (4, 8), and the model expects",
    ),
    "a shape in a list": (lambda: C(Says(lambda x: x[0].relu()), ([(4, 8)],)), "input x[0] is (4, 8), and the model"),
    "a number": (lambda: C(NET, (4,)), "input input is 4, and the model expects a tensor\n  hint: make a tensor of it"),
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
    "a module": (lambda: C(NET, (NET,)), "a Sequential is among the inputs: a module is part of the model"),
    "too many": (
        lambda: C(NET, (X, X)),
        "Sequential.forward(input): too many positional arguments; given: a Tensor, a T",
    ),
    "too few": (
        lambda: C(Pair(), (X,)),
        "Pair.forward(a, b, scale): missing a required argument: 'b'; given: a Tensor",
    ),
    "an unknown name": (lambda: C(Pair(), (X,), {"scal": X}), "there is no 'scal': did you mean 'scale'?"),
    "on meta": (lambda: C(NET, (X.to("meta"),)), "input input is on meta, the model is on cpu"),
    "another dtype": (lambda: C(NET, (X.long(),)), "input input is int64, expected float32: aten.linear.default (lin"),
    "another dtype of an index": (lambda: C(nn.Embedding(9, 4), (X,)), "input input is float32, expected int64"),
    "another size": (
        lambda: C(NET, (torch.ones(4, 9),)),
        "but got [4, 9] X [8, 4].\n  hint: model(*args) fails too if inputs do not fit",
    ),
    "ranges for no input": (
        lambda: C(NET, (X,), dynamic_shapes={"rows": {0: N}}),
        "has 'rows'; the inputs of Sequential",
    ),
    "ranges as pairs": (lambda: C(NET, (X,), dynamic_shapes=({0: (1, 8)},)), "is (1, 8): expected torch.export.Dim"),
    "ranges as a name": (
        lambda: C(NET, (X,), dynamic_shapes="batch"),
        "dynamic_shapes is a str: pass a dict by the name",
    ),
    "a range for no dimension": (
        lambda: C(NET, (X,), dynamic_shapes=({5: N},)),
        "has dimension 5; the input has rank 2",
    ),
    "a range of a fixed size": (lambda: C(NET, (X,), dynamic_shapes=({1: N},)), "Sequential specializes dynamic sizes"),
    "a range without the example": (
        lambda: C(NET, (torch.ones(9, 8),), dynamic_shapes=({0: N},)),
        "input input has size 9 in dimension 0, and n goes from 0 to 8\n  hint: pass an example within the range",
    ),
    "a range given twice": (
        lambda: C(NET, (ROWS,), dynamic_shapes=({0: N},)),
        "dimension 0 of input input has two ranges",
    ),
    "profiles that are none": (
        lambda: C(NET, (X,), profiles=[(1, 2)]),
        "dynamic_shapes has 2 entries for 1 inputs (inp",
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
    "a misspelt argument": (lambda: C(NET, arg=(X,)), "has no 'arg'; did you mean 'args'?"),
    "a misspelt setting": (lambda: C(NET, (X,), min_block=1), "did you mean 'min_block_size'?"),
    "a misspelt executor": (lambda: D(build_executer=None), "did you mean 'build_executor'?"),
    "a misspelt precision": (lambda: C(NET, (X,), precison="fp16"), "did you mean 'precision'?"),
    "a precision that is none": (
        lambda: C(NET, (X,), precision="fp8"),
        "precision is 'float16', 'bfloat16' or 'float32'",
    ),
    "a list of precisions": (lambda: C(NET, (X,), precision=["fp16"]), "(fp16, bf16, fp32), not ['fp16']"),
    "enabled_precisions": (lambda: C(NET, (X,), enabled_precisions={torch.half}), 'pass precision="float16"'),
    "fp16": (lambda: C(NET, (X,), fp16=True), 'is not a compilation setting; pass precision="float16"'),
    "inputs": (lambda: C(NET, inputs=[X]), "inputs are given to the call: pipeline.compile(model, args=(x,)"),
    "ir": (lambda: C(NET, (X,), ir="dynamo"), "there is one front end: torch.export captures modules"),
    "a dict": (lambda: C(NET, (X,), settings={"a": 1}), "settings are CompilationSettings, not a dict"),
    "a registry of functions": (lambda: D(registry={}), "registry is a dict, expected a ConverterRegistry; Converter"),
    "an executor by name": (lambda: D(build_executor="reference"), "is a concurrent.futures.Executor, such as Thread"),
    "a field that is misspelt": (
        lambda: S(min_blok_size=1),
        "'min_blok_size' is not a field of CompilationSettings; did yo",
    ),
    "a field of Torch-TensorRT": (lambda: S(use_python_runtime=True), "there is one runtime, in Python"),
    "a field of nothing": (
        lambda: S(colour="red"),
        "'colour' is not a field of CompilationSettings; pipeline.CompilationS",
    ),
    "by position": (lambda: S(1), "is given an int by position: settings are given by name, as min_block_size=1"),
    "a field that is set": (
        lambda: setattr(S(), "device", "cuda"),
        "cannot be set: settings.evolve(name=value) returns",
    ),
    "a misspelt field of a copy": (lambda: S().evolve(cuda_graph=True), "did you mean 'cuda_graphs'?"),
    "a text as an integer": (lambda: S(min_block_size="1"), "min_block_size is an integer at least 1, not '1'"),
    "gigabytes": (
        lambda: S(workspace_size="1GB"),
        "workspace_size is an integer from 0 to 9223372036854775807, or None",
    ),
    "a word as a flag": (lambda: S(require_full_compilation="yes"), "is True or False, not 'yes'"),
    "a level too high": (
        lambda: S(optimization_level=7),
        "optimization_level is an integer from 0 to 5, or None, not 7",
    ),
    "one operator": (lambda: S(torch_executed_ops="aten.topk"), "takes a collection of operators, names or predicates"),
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
        "torch.topk is traced to operators: name those",
    ),
    "a module": (lambda: S(torch_executed_ops=[nn.Linear]), "Linear is traced to operators"),
    "a capability as a number": (lambda: S(compute_capabilities=[8.6]), '8.6 is not a string such as "8.6"'),
    "a capability of nvcc": (lambda: S(compute_capabilities=["sm_86"]), "'sm_86' is not of the form \"8.6\""),
    "one capability": (lambda: S(compute_capabilities="8.6"), 'takes a collection such as ("8.6", "12.0"), not'),
    "a word close to one": (lambda: S(decisions="examples"), "not 'examples'; did you mean 'example'?"),
    "a word in capitals": (lambda: S(kernel_specialization="Lazy"), "did you mean 'lazy'?"),
    "a device by number": (lambda: S(device=0), "device is 'cuda', 'cpu' or None, not 0"),
    "a second device": (lambda: S(device="cuda:1"), "not 'cuda:1'; engines run on the current CUDA device"),
    "a folder by number": (lambda: S(engine_cache_dir=3), "engine_cache_dir is a folder, an fsspec URL or None, not 3"),
    "one pattern": (lambda: S(refittable_weights="layers.*"), 'takes a collection such as ("layers.0.*",), not'),
}

DESCRIBED: Final[dict[str, Misuse]] = {
    "a tensor": (lambda: Input(X), "pipeline.Input.from_tensor(x) describes one"),
    "a name as a size": (
        lambda: Input(("batch", 8)),
        "shape[0] is an integer, not 'batch'; a size that varies has a range",
    ),
    "None as a size": (lambda: Input((None, 8)), "not None; a size that varies has a range: min_shape and max_shape"),
    "minus one": (lambda: Input((-1, 8)), "shape[0] is -1, less than 0; ranges take min_shape and max_shape"),
    "a fraction": (lambda: Input((4.0, 8)), "Input: shape[0] is an integer, not 4.0"),
    "sizes by position": (
        lambda: Input(4, 8),
        "is given an int, an int by position: Input(shape, dtype=…) takes one shape",
    ),
    "a dtype by position": (lambda: Input((4, 8), torch.half), "is given a tuple, a dtype by position"),
    "one size": (lambda: Input(4), "Input: shape is a sequence of sizes, not 4"),
    "ranks that differ": (lambda: Input(min_shape=(1, 8), max_shape=(8,)), "min_shape has rank 2 and max_shape rank 1"),
    "a range backwards": (
        lambda: Input(min_shape=(8, 8), max_shape=(1, 8)),
        "in dimension 0 min_shape is 8 and max_shape is 1",
    ),
    "an optimum outside": (
        lambda: Input(min_shape=(1, 8), opt_shape=(9, 8), max_shape=(8, 8)),
        "opt_shape is 9 and max_shape is 8; min <= opt <= max",
    ),
    "half a range": (
        lambda: Input(min_shape=(1, 8)),
        "min_shape and max_shape must be given; for one size only, Input(shap",
    ),
    "a shape and a range": (
        lambda: Input((4, 8), min_shape=(1, 8), max_shape=(8, 8)),
        "give either shape, or min_shape",
    ),
    "nothing": (lambda: Input(), "shape, or min_shape and max_shape must be given"),
    "a dtype by name": (lambda: Input((4, 8), dtype="float16"), "dtype is a torch.dtype, not 'float16': torch.float16"),
    "a name with a space": (lambda: Input((4, 8), name="my input"), "name is a Python identifier, not 'my input'"),
    "a device by another name": (lambda: Input((4, 8), device="gpu"), "its name (cuda, cuda:1, cpu), not 'gpu'"),
    "a format": (
        lambda: Input((4, 8), format="nhwc"),
        "'format' is not a field of Input; programs take inputs of any strides",
    ),
    "a misspelt range": (lambda: Input(min_shape=(1,), optshape=(2,), max_shape=(4,)), "did you mean 'opt_shape'?"),
    "one profile": (
        lambda: Input(profiles=((1,), (2,), (4,))),
        "a profile is (min_shape, opt_shape, max_shape), not (1,)",
    ),
    "commas": (lambda: Input.parse("4,8"), "'4,8' is not a size; write [NAME=]DIMxDIM…[:DTYPE][@DEVICE]"),
    "a dtype that is none": (
        lambda: Input.parse("4x8:fp12"),
        "'fp12' is not a dtype; torch's names (float16, int64, bool)",
    ),
    "a shape as a tensor": (
        lambda: Input.from_tensor((4, 8)),
        "takes a tensor, not a tuple; a shape is described by Input",
    ),
    "a constant of text": (lambda: pipeline.Constant("a"), "value is a tensor, or numbers in lists, not a str"),
    "a constant too large": (lambda: pipeline.Constant(torch.zeros(1 << 17)), "has 131072 elements, of at most 65536"),
    "a ragged constant": (
        lambda: pipeline.Constant([[1], [1, 2]]),
        "numbers in lists of equal lengths: expected sequence",
    ),
}

CAPTURED: Final[dict[str, Misuse]] = {
    "a branch on data": (lambda: C(Branching(), (X,)), "Branching decides by data, which only a call has: models.py:"),
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
