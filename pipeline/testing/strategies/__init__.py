"""Hypothesis strategies for random operator calls: hand-written (a file per family), or generated from the schema.

``strategy_for(target)`` returns an operator's strategy. The file of an operator family, ``strategies/<family>.py``,
declares strategies by ``@strategy``:

    @strategy(aten.linear.default)
    def linear(draw, target):
        shape, dtype, out = draw(shapes(1, 4)), draw(floats), draw(st.integers(1, 5))
        weight = draw(tensors((out, shape[-1]), dtype, constant=draw(st.booleans())))
        bias = draw(st.none() | tensors((out,), dtype, constant=True))
        call = Call(target, (draw(tensors(shape, dtype)), weight, bias))
        return draw(name_sizes(call, {0: range(len(shape) - 1)}))      # dims other than the last may be dynamic

    @strategy(aten.add.Tensor, aten.sub.Tensor)
    def add(draw, target):
        dtype, (a, b) = draw(dtypes), draw(broadcast_shapes())
        return draw(name_sizes(Call(target, (draw(tensors(a, dtype)), draw(tensors(b, dtype))), {"alpha": 2})))

Name every size that may be dynamic: tests remove the names if they need a static call.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Final

from hypothesis import strategies as st

from pipeline.recipes import qualified_name
from pipeline.testing.calls import Call
from pipeline.testing.strategies.automatic import strategy_from_schema
from pipeline.testing.strategies.common import Strategies

_NOT_FAMILIES: Final = frozenset({"automatic", "common"})


@cache
def handwritten_strategies() -> Mapping[object, st.SearchStrategy[Call]]:
    """Return all hand-written strategies, by operator."""
    found = Strategies()
    for name in sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_FAMILIES):
        for declared in vars(importlib.import_module(f"{__name__}.{name}")).values():
            if isinstance(declared, Strategies):
                if twice := found.keys() & declared.keys():
                    names = ", ".join(sorted(map(qualified_name, twice)))
                    raise ValueError(f"{names} has two strategies, one of them in {name}.py")
                found.update(declared)
    return found


@cache
def strategy_for(target: object) -> st.SearchStrategy[Call] | None:
    """Return the strategy for an operator's calls, hand-written or from its schema; None if there is none."""
    found = handwritten_strategies().get(target)
    return found if found is not None else strategy_from_schema(target)
