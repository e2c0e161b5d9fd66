"""Test converters and decompositions: compare compiled operator calls with eager PyTorch.

Test your own converter on random calls that Hypothesis generates (``pip install hypothesis pytest``):

    from pipeline.testing import check_converter

    def test_my_gelu():
        check_converter(my_gelu)

Test a single call, in which dynamic sizes have names. A failing test prints the call in this form, to paste into a
test:

    check(Call(aten.add.Tensor, (TensorSpec(("n", 3), torch.float16), TensorSpec((3,), torch.float16)), sizes={"n": 2}))
    check(Call(aten.linear.default, (TensorSpec(("n", 4)), TensorSpec((5, 4), constant=True)), sizes={"n": (1, 2, 8)}))
    check(Call(aten.view.default, (TensorSpec(("n", 6)), [Size("n", 2), 3]), sizes={"n": 2}), build=True)

- ``TensorSpec(shape, dtype=torch.float32, values="normal", constant=False, seed=0)``: ``values`` are named in
  ``pipeline.testing.values``; constants are parameters of the model and arrive in the converter as ``torch.Tensor``.
- ``Size(name, scale=1, offset=0, divisor=1)``: an int argument computed from sizes,
  ``name // divisor * scale + offset``; the name may be a product, ``"n*m"``.
- A decomposition of your own: ``check_decomposition(my_addmm, expected=[aten.mm.default], unexpected=[aten.addmm])``.
- ``check`` returns ``Checked``, or ``Rejected`` (falsy) with the reasons. ``check`` raises ``CheckError``, whose
  ``kind`` is ``"decomposes"``, ``"converts"``, ``"deterministic"``, ``"runs"``, ``"values"``, ``"builds"`` or
  ``"used"``, and ``CallError`` if PyTorch itself does not accept the call.
- Strategies are in ``pipeline.testing.strategies``: its docstring shows how to write a strategy, ``strategies.common``
  has the building blocks, and ``strategy_for(target)`` returns the hand-written strategy, or one generated from the
  schema (elementwise operators, reductions).
- The tolerances against float64 are in one table, ``pipeline.testing.ulps.ULPS``.

Run a single operator of the registry: ``pytest tests/converters/test_properties.py -k aten.add.Tensor``.
"""

from pipeline.errors import require_package

require_package("hypothesis", "test")

from pipeline.testing.calls import Call, Size, TensorSpec
from pipeline.testing.check import Checked, CheckError, Rejected, check
from pipeline.testing.decompositions import check_decomposition
from pipeline.testing.models import ModelError, check_model
from pipeline.testing.programs import CallError
from pipeline.testing.properties import Tally, check_converter, check_target
from pipeline.testing.ulps import ULPS, Units

__all__ = [
    "ULPS",
    "Call",
    "CallError",
    "CheckError",
    "Checked",
    "ModelError",
    "Rejected",
    "Size",
    "Tally",
    "TensorSpec",
    "Units",
    "check",
    "check_converter",
    "check_decomposition",
    "check_model",
    "check_target",
]
