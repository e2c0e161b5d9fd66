"""Test converters as this package tests its own: calls as records, and a check that leaves little to chance.

A call names the sizes that may be dynamic; it is pasted from a failure as it stands:

    from pipeline.testing import Call, Size, TensorSpec, check

    check(Call(aten.add.Tensor, (TensorSpec(("n", 3), torch.float16), TensorSpec((3,), torch.float16)), sizes={"n": 2}))
    check(Call(aten.linear.default, (TensorSpec(("n", 4)), TensorSpec((5, 4), constant=True)), sizes={"n": (1, 2, 8)}))
    check(Call(aten.view.default, (TensorSpec(("n", 6)), [Size("n", 2), 3]), sizes={"n": 2}))

``TensorSpec(shape, dtype=torch.float32, values="normal", constant=False, seed=0)``; ``values`` are named in
``pipeline.testing.values``; constants are parameters of the model and arrive in the converter as ``torch.Tensor``.
"""

from pipeline.testing.calls import Call, Size, TensorSpec
from pipeline.testing.check import Checked, CheckError, Rejected, check
from pipeline.testing.programs import CallError
from pipeline.testing.ulps import ULPS, Units

__all__ = ["ULPS", "Call", "CallError", "CheckError", "Checked", "Rejected", "Size", "TensorSpec", "Units", "check"]
