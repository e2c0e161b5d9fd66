"""``check_decomposition``: check which operators a decomposition returns, and that its results are correct."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

import hypothesis
from toolz import pipe

from pipeline.aten.types import Function, Operator, Target
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.declare import targets_of_key
from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry
from pipeline.program import Program, is_operator
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings
from pipeline.stages import Decompose, Validate, avoid_faults, convert, partition, refit_map
from pipeline.stages.unbuilt import unbuilt
from pipeline.testing.calls import Call
from pipeline.testing.check import CheckError, compare_with_eager, run_or_fail
from pipeline.testing.programs import CallError, build_call_program
from pipeline.testing.properties import run_on_random_calls
from pipeline.testing.strategies import strategy_for


def check_decomposition(
    decomposition: Function,
    *calls: Call,
    expected: Iterable[Target] = (),
    unexpected: Iterable[Target] = (),
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    decompositions: DecompositionTable = DECOMPOSITIONS,
    settings: CompilationSettings | None = None,
    profile: hypothesis.settings | None = None,
) -> None:
    """Check that a decomposition is used, returns the expected operators, and computes correct results.

        def test_my_addmm():
            check_decomposition(my_addmm, expected=[aten.mm.default], unexpected=[aten.addmm])

    Results are compared as in ``check``, with dynamic sizes if the call names sizes; operators without a converter run
    in PyTorch.

    Args:
        decomposition: a function declared with ``register_torch_trt_decomposition``.
        calls: calls of its operators; if none are given, Hypothesis generates calls for each operator.
        expected: operators that every call decomposes to, by overload, packet (any of its overloads) or name.
        unexpected: operators that no call decomposes to; the decomposed operator is one, unless it is in ``expected``.
        registry, decompositions, settings: what to compile with.
        profile: Hypothesis's settings; None: the profile that is loaded.

    Raises:
        CheckError: kind ``decomposes``: the decomposition is not used, or returns other operators, which are listed.
            All other kinds are those of ``check``.
        LookupError: no calls are given, and no strategy generates calls.
        TypeError: the function declares no decomposition.
    """
    table = DecompositionTable().register(decomposition)
    stage = Decompose(registry, decompositions | table)
    required, banned = _targets_by_name(expected), _targets_by_name(unexpected)
    validate = Validate(registry)

    def check_call(call: Call) -> None:
        call_program = build_call_program(call, settings or CompilationSettings())
        program = run_or_fail("decomposes", call, lambda: stage(call_program.program))
        _check_operators(call, program, required, banned)
        stages = (validate, partition, avoid_faults, convert, unbuilt, refit_map)
        compiled = run_or_fail("converts", call, lambda: pipe(program, *stages))
        compare_with_eager(call, call_program, compiled, "reference")

    for call in calls:
        check_call(call)
    if not calls:
        _check_random_calls(table, check_call, profile or hypothesis.settings())


TargetsByName: TypeAlias = dict[str, frozenset[Target]]


def _targets_by_name(keys: Iterable[Target]) -> TargetsByName:
    """Return a dict from each overload, packet or name (as text) to the operators for which it stands."""
    return {str(key): frozenset(targets_of_key(key)) for key in keys}


def _check_operators(call: Call, program: Program, expected: TargetsByName, unexpected: TargetsByName) -> None:
    """Raise a `CheckError` if the call was not decomposed, lacks an expected operator or has an unexpected one."""
    found = dict.fromkeys(node.target for node in program.graph.nodes if is_operator(node))
    becomes = f"it becomes {', '.join(map(qualified_name, found)) or 'a constant'}"
    if call.target not in program.decomposed:
        raise CheckError("decomposes", call, f"the decomposition is not used; {becomes}")
    if not any(call.target in targets for targets in expected.values()):
        unexpected = unexpected | _targets_by_name([call.target])
    faults = [f"without {name}, which is expected" for name, targets in expected.items() if not targets & found.keys()]
    faults += [f"with {name}, which is not" for name, targets in unexpected.items() if targets & found.keys()]
    if faults:
        raise CheckError("decomposes", call, f"{becomes}: {'; '.join(faults)}")


def _check_random_calls(targets: Iterable[Operator], check_call: Function, profile: hypothesis.settings) -> None:
    """Call ``check_call`` with random calls of these operators; raise a LookupError if none is accepted."""
    strategies = [strategy for strategy in map(strategy_for, targets) if strategy is not None]
    passed: list[Call] = []

    def check_accepted_call(call: Call) -> None:
        with suppress(CallError):
            check_call(call)
            passed.append(call)

    for strategy in strategies:
        run_on_random_calls(strategy, check_accepted_call, profile)
    if not passed:
        names = ", ".join(map(qualified_name, targets))
        raise LookupError(f"no strategy generates calls of {names} that PyTorch accepts: pass your own calls")
