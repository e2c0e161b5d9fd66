"""A user's project that mypy finds nothing wrong with, and what it knows of each result."""

from typing import Any, assert_type

import torch

import pipeline
from pipeline import Built, Compiled, Converted, Partitioned, Pipeline, Program, Validated
from pipeline.compiled import CompiledModule

model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
args = (torch.zeros(2, 3),)


@pipeline.stage
def at_most_a_gigabyte(compiled: Compiled) -> Compiled:
    """Refuse engines that our devices have no room for."""
    assert sum(engine.nbytes for engine in compiled.engines) < 1e9
    return compiled


def sizes(compiled: Compiled) -> list[int]:
    """The size of each engine in bytes."""
    return [engine.nbytes for engine in compiled.engines]


def no_engines(converted: Converted) -> Built:
    """Build in a way of one's own."""
    raise NotImplementedError(converted.networks)


compile = pipeline.default(require_full_compilation=True)
assert_type(compile, Pipeline[Program, Compiled])

compiled = compile(model, args, dynamic_shapes=({0: torch.export.Dim("batch")},))
assert_type(compiled, Compiled)
assert_type([fallback.reason for fallback in compiled.coverage.fallback], list[str])
assert_type(compiled.module(executor="reference"), CompiledModule)
assert_type(compiled.report(), str)

assert_type(compile | at_most_a_gigabyte, Pipeline[Program, Compiled])
assert_type(compile | pipeline.verify(), Pipeline[Program, Compiled])
assert_type(compile | sizes, Pipeline[Program, list[int]])
assert_type((compile | sizes)(model, args), list[int])
assert_type(at_most_a_gigabyte | at_most_a_gigabyte, Pipeline[Compiled, Compiled])
assert_type(compile | (at_most_a_gigabyte | at_most_a_gigabyte), Pipeline[Program, Compiled])

assert_type(compile.until("decompose")(model, args), Program)
assert_type(compile.until("improve")(model, args), Program)
assert_type(compile.until("validate")(model, args), Validated)
assert_type(compile.until("partition")(model, args), Partitioned)
assert_type(compile.until("convert")(model, args), Converted)
assert_type(compile.until("build")(model, args), Built)
assert_type(compile.until("refit_map")(model, args), Compiled)
assert_type(compile.until("a stage of mine"), Pipeline[Program, Any])
assert_type(compile(compile.until("improve")(model, args)), Compiled)

assert_type(compile.observed_by(print, pipeline.Ledger()), Pipeline[Program, Compiled])
assert_type(compile.insert(pipeline.autocast(torch.float16), before="decompose"), Pipeline[Program, Compiled])
assert_type(compile.replace("partition", pipeline.by_submodule(3)), Pipeline[Program, Compiled])
assert_type(compile.replace("build", no_engines), Pipeline[Program, Compiled])
assert_type(compile.replace("refit_map", lambda built: built), Pipeline[Any, Any])
assert_type(compile.without("improve"), Pipeline[Program, Compiled])
assert_type(compile.without("refit_map"), Pipeline[Any, Any])
