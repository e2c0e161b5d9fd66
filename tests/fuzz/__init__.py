"""Random programs: nn.Modules whose source prints, compiled and compared with eager by ``check_model``.

    from tests.fuzz import program

    print(program(17))          # the same script every time: paste it to run it
    program(17).run()           # the compiled program, or ModelError

``program(seed)`` draws with its own generator; ``programs()`` is a Hypothesis strategy of the same programs.
``shrunk(snippet)`` returns the smallest program that fails in the same way.
"""

from __future__ import annotations

import random

from hypothesis import strategies as st

from pipeline.testing.models import ModelError
from tests.fuzz.draw import draw
from tests.fuzz.shrink import shrunk
from tests.fuzz.snippet import Snippet

__all__ = ["ModelError", "Snippet", "program", "programs", "shrunk"]


def program(seed: int) -> Snippet:
    """The program of a seed."""
    return draw(random.Random(seed).choice)


@st.composite
def programs(drawn: st.DrawFn) -> Snippet:
    """A Hypothesis strategy of random programs."""
    return draw(lambda options: drawn(st.sampled_from(options)))
