"""verify: ``Compiled`` → ``Compiled``. Run the program and eager PyTorch on the same inputs, and record the errors.

Before: any compiled program. After: the same program with its ``agreement``. If the program does not agree and healing
was requested, the nodes that cause the errors are computed differently, and ``coverage.healed`` lists them.
"""

from __future__ import annotations

from typing import Literal, get_args

from attrs import evolve, field, frozen
from attrs.validators import instance_of

from pipeline.compiled import Compiled, Executor
from pipeline.compose.pipelines import as_stage
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.errors import AgreementError, AgreementWarning, warn
from pipeline.records.wording import kind_of, one_of
from pipeline.stages.avoid_faults import avoid_faults
from pipeline.stages.build import build
from pipeline.stages.convert import convert
from pipeline.stages.partition import partition
from pipeline.stages.refit_map import refit_map
from pipeline.stages.unbuilt import unbuilt
from pipeline.stages.validate import Validate
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.healing import heal
from pipeline.verification.measure import Comparison
from pipeline.verification.module_comparison import add_module_rows
from pipeline.verification.recompile import Recompiler, check_compilable
from pipeline.verification.samples import UserInputs

OnFailure = Literal["raise", "warn", "heal"]

STAGES: tuple[AnyStage, ...] = tuple(
    map(as_stage, (Validate(DYNAMO_CONVERTERS), partition, avoid_faults, convert, build, refit_map))
)
"""The stages with which `verify` and `load` compile a program again if they are not part of a pipeline."""


def _check_inputs(_instance: object, _field: object, value: UserInputs) -> None:
    if value is not None and not callable(value) and not isinstance(value, list | tuple):
        due = "a list of calls, such as [(x,)], or a function of sizes that returns a list"
        raise TypeError(f"inputs must be {due}, got {kind_of(value)}")


def _check_multiple(_instance: object, _field: object, value: object) -> None:
    """Raise an error if `Verify.multiple`, the factor for eager's error, is no number of at least 1."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"multiple must be a number of at least 1, got {value!r}")
    if not value >= 1:
        raise ValueError(f"multiple must be a number of at least 1, got {value!r}")


@frozen
class Verify:
    """The stage that `verify` returns; `verify` documents its options. ``earlier_stages``: those of the pipeline, by
    which it compiles a program again; the pipeline sets them."""

    on_failure: OnFailure = field(default="raise", validator=one_of(*get_args(OnFailure)))
    inputs: UserInputs = field(default=None, eq=False, repr=False, kw_only=True, validator=_check_inputs)
    executor: Executor | None = field(default=None, kw_only=True, validator=one_of(None, *get_args(Executor)))
    multiple: float = field(default=MULTIPLE, kw_only=True, validator=_check_multiple)
    module: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    earlier_stages: tuple[AnyStage, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    name: str = field(default="verify", kw_only=True)

    def __call__(self, compiled: Compiled) -> Compiled:
        """Return the program with its ``agreement``: its errors compared with eager PyTorch. If they are too large and
        ``on_failure`` is ``"heal"``, first compile the nodes that cause them in another variant, such as in float32.

        Raises:
            AgreementError: errors are too large, also after healing, or the graph does not agree with the module. With
            ``on_failure="warn"``, this is only a warning.
        """
        comparison = Comparison.create(compiled.program, self.executor, self.inputs, self.multiple)
        agreement = comparison.measure_agreement(compiled)
        if self.on_failure == "heal" and agreement.failures:
            check_compilable(compiled.program)
            stages = self.earlier_stages or STAGES
            final = Recompiler.from_stages(stages)
            needs_engines = comparison.executor != "reference"
            trial = final if needs_engines else Recompiler.from_stages(stages, as_stage(unbuilt))
            compiled = heal(compiled, agreement, comparison, trial, final)
            agreement = compiled.agreement or agreement
        if self.module:
            agreement = add_module_rows(agreement, comparison, compiled.program, self.multiple)
        if not agreement.holds:
            if self.on_failure != "warn":
                raise AgreementError(agreement)
            warn(str(AgreementError(agreement)), AgreementWarning)
        return evolve(compiled, agreement=agreement)


def verify(
    on_failure: OnFailure = "raise",
    *,
    inputs: UserInputs = None,
    executor: Executor | None = None,
    multiple: float = MULTIPLE,
    module: bool = True,
) -> Verify:
    """Return a stage that compares the program with eager PyTorch: ``pipeline.default() | pipeline.verify()``.

    The program and eager run on the same inputs, at the smallest, optimal and largest sizes that the program accepts.
    Errors are measured against float64; at the smallest and largest sizes only if the program and eager differ by more
    than the floor. The error of an output may be ``multiple`` times eager's error in the model's dtypes, plus a floor.
    The floor is relative to the output's largest magnitude: 4e-6 in float32; on a GPU 3e-5, or 5e-3 if its matmuls use
    TF32 (then eager uses TF32, too); and 4 units in the last place in half precision. Integers and bools must be equal.
    Elements that change when matmuls are rounded differently are not compared, but counted.

    Eager runs the graph that torch.export captured from the model. If the module still exists, a copy of it is called
    with the same inputs, and must agree with that graph within the same bounds. If it does not agree, engines are not
    the cause, and nothing is healed: the error reports that the captured graph differs from the module.

    Args:
        on_failure: ``"raise"`` (`AgreementError`), ``"warn"`` (a Python warning, `AgreementWarning`), or ``"heal"``:
            the nodes that cause the errors are found as by `pipeline.bisect`, and compiled in the first variant that
            agrees: in float32, by another converter, by torch's decomposition, or in PyTorch. ``coverage.healed``
            names them. If no variant agrees, an `AgreementError` is raised.
        inputs: calls to compare, instead of calls made from the example inputs: a list, or a function that gets the
            sizes (``{"x.shape[0]": 8}``) and returns one call. A call is a tuple of positional inputs, a dict of
            keyword inputs, or both as ``(tuple, dict)``.
        executor: ``"tensorrt"``, ``"reference"``, or None: TensorRT if there is a GPU.
        multiple: the factor for eager's error.
        module: whether to compare the captured graph with the module, too.

    The record's ``agreement`` has the errors of every output at every size.
    """
    return Verify(on_failure, inputs=inputs, executor=executor, multiple=multiple, module=module)
