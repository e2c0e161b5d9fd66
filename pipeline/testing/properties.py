"""``check_converter``: compare a converter with eager PyTorch on random operator calls from Hypothesis."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
from attrs import define, field
from hypothesis import strategies as st

from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.declare import declarations_of
from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings
from pipeline.testing.calls import Call
from pipeline.testing.check import Checked, CheckError, Rejected, check
from pipeline.testing.programs import CallError
from pipeline.testing.strategies import strategy_for

Strategy = st.SearchStrategy[Call]

BUILD_EVERY = 12
"""The engine of one in this many calls is built; a hash of the printed call decides, so that failures recur."""

CALLS_PER_ROUND = 10
"""The number of calls that Hypothesis generates in one round. After ten calls it mostly generates variations of earlier
ones, which find few errors."""


@define
class Tally:
    """Counts of the calls that were tested; each was passed, rejected or refused.

    passed: calls that passed every check. used: those of them that tested the target's own converter, and not a
        decomposition. reasons: why calls were rejected (cannot run in an engine), with counts. refused: the errors for
        calls that eager PyTorch or tracing does not accept. seen: all calls.
    """

    passed: int = 0
    used: int = 0
    reasons: Counter[str] = field(factory=Counter)
    seen: set[Call] = field(factory=set, repr=False)
    refused: list[CallError] = field(factory=list, repr=False)

    def check_once(self, call: Call, check: Callable[[Call], Checked | Rejected]) -> None:
        """Check a call and count its result, unless the same call was checked before."""
        if call in self.seen:
            return
        try:
            result = check(call)
            if isinstance(result, Checked):
                self.passed += 1
                self.used += result.used
            else:
                self.reasons.update(reason.reason for reason in result.reasons)
        except CallError as error:
            self.refused.append(error)
        self.seen.add(call)

    def __str__(self) -> str:
        rows = [f"  {count} x {reason}" for reason, count in self.reasons.most_common()]
        rows += [f"  PyTorch does not accept {len(self.refused)}: {self.refused[0]}"] if self.refused else []
        return "\n".join([f"{self.passed} calls passed, {self.used} of them by the converter itself", *rows])


def check_target(
    target: object,
    *,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    decompositions: DecompositionTable = DECOMPOSITIONS,
    settings: CompilationSettings | None = None,
    strategy: Strategy | None = None,
    dynamic: bool | None = None,
    build_every: int = BUILD_EVERY,
    profile: hypothesis.settings | None = None,
    devices: Sequence[str] = (),
) -> Tally:
    """Run ``check`` on random calls of an operator, as many as Hypothesis's profile has examples.

    Args:
        target: the operator.
        registry, decompositions, settings: what to compile with.
        strategy: the strategy that generates calls; None: ``strategies.strategy_for``.
        dynamic: True: only calls with dynamic sizes; False: all sizes are static; None: calls as generated.
        build_every: build an engine for every N-th call; 0 for none.
        profile: Hypothesis's settings; None: the profile that is loaded. Only the first failure is raised, after
            shrinking.
        devices: further devices to capture each call for (``"cuda"``), as in ``check``.

    Raises:
        CheckError: a call fails a check.
        AssertionError: nothing was tested: every call was rejected, or a decomposition takes precedence over the
            converter.
        LookupError: there is no strategy, and none can be generated from the schema.
    """
    drawn = strategy if strategy is not None else strategy_for(target)
    if drawn is None:
        raise LookupError(
            f"there is no strategy for {qualified_name(target)}, whose arguments depend on each other: pass strategy=…"
        )
    tally = Tally()

    def check_call(call: Call) -> Checked | Rejected:
        build = build_every > 0 and zlib.crc32(repr(call).encode()) % build_every == 0
        options = {"registry": registry, "decompositions": decompositions, "settings": settings}
        return check(call, **options, build=build, devices=devices)  # type: ignore[arg-type]

    drawn = drawn.filter(lambda call: call.is_dynamic) if dynamic else drawn
    drawn = drawn.map(lambda call: call.with_static_sizes()) if dynamic is False else drawn
    run_on_random_calls(drawn, lambda call: tally.check_once(call, check_call), profile or hypothesis.settings())
    _check_that_calls_passed(qualified_name(target), tally)
    return tally


def run_on_random_calls(strategy: Strategy, run: Callable[[Call], None], profile: hypothesis.settings) -> None:
    """Call a function with ``profile.max_examples`` random calls from a strategy."""
    slow = [hypothesis.HealthCheck.too_slow]
    for number in range(0, profile.max_examples, CALLS_PER_ROUND):
        count = min(CALLS_PER_ROUND, profile.max_examples - number)

        @hypothesis.settings(
            profile, max_examples=count, deadline=None, report_multiple_bugs=False, suppress_health_check=slow
        )
        @hypothesis.given(strategy)
        def run_round(call: Call) -> None:
            run(call)

        (hypothesis.seed(number)(run_round) if profile.derandomize else run_round)()  # another seed in each round


def _check_that_calls_passed(name: str, tally: Tally) -> None:
    """Raise an AssertionError if PyTorch refused most calls, if no call passed, or none used the converter."""
    if len(tally.refused) > len(tally.seen) / 2:
        raise AssertionError(f"{name}: PyTorch rejects most of the random calls\n{tally}") from tally.refused[0]
    if not tally.passed:
        raise AssertionError(f"{name}: nothing was tested, since every call was rejected\n{tally}")
    if not tally.used and any(call.inputs or call.is_dynamic for call in tally.seen):  # the rest is folded, rightly
        raise AssertionError(
            f"{name}: its converter was never used, because the operator is decomposed first "
            "(pass decompositions=DECOMPOSITIONS.without(target) to keep the operator)"
        )


def check_converter(converter: Callable[..., object] | ConverterRegistry, *targets: Any, **options: Any) -> None:
    """Test a converter on random calls of its operators; each call must pass every check of ``check``.

        def test_my_gelu():
            check_converter(my_gelu)

    Args:
        converter: a function declared with ``dynamo_tensorrt_converter``, or a registry.
        targets: the operators to test; by default all that the converter declares.
        options: keyword arguments of ``check_target``. The converter is tested in ``registry`` (one of them), where it
            replaces all other converters of its operators.

    Raises:
        CheckError, AssertionError, LookupError: as in ``check_target``; LookupError also if there is no converter.
    """
    registry, name = options.pop("registry", DYNAMO_CONVERTERS), ""
    if isinstance(converter, ConverterRegistry):
        registry, declared = converter, sorted(converter.unique_targets(), key=qualified_name)
    else:
        name, declared = getattr(converter, "__name__", ""), [d.key for d in declarations_of(converter)]
        registry = registry.override(converter)
    if not declared or (unknown := [target for target in targets if target not in declared]):
        known = ", ".join(map(qualified_name, declared))
        why = f"none is for {qualified_name(unknown[0])}, only for {known}" if declared else "the registry is empty"
        raise LookupError(f"found no converter to test: {why}")
    try:
        for target in targets or declared:
            check_target(target, registry=registry, **options)
    except CheckError as error:
        error.converter = name
        raise
