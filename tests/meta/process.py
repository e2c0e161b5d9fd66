"""What a test can change for all that run after it in the same process, and how it is put back.

A campaign that silenced the log in its own process did so in pytest's as well: 16 tests that read the log failed,
wherever they ran after it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

Place = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How a value is read and how it is set."""


def _log(name: str) -> dict[str, Place]:
    log = logging.getLogger(name)
    return {
        f"level of the log {name}": (lambda: log.level, log.setLevel),
        f"propagation of the log {name}": (lambda: log.propagate, partial(setattr, log, "propagate")),
        f"silence of the log {name}": (lambda: log.disabled, partial(setattr, log, "disabled")),
    }


PLACES: Final[Mapping[str, Place]] = {
    "logging.disable": (lambda: logging.root.manager.disable, logging.disable),
    **_log("pipeline"),
    **_log("pipeline.tensorrt"),
    **_log("pipeline.torch"),
    **_log("torch"),
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's threads": (torch.get_num_threads, torch.set_num_threads),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "inference mode": (torch.is_inference_mode_enabled, lambda _: None),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "Ctrl-C": (partial(signal.getsignal, signal.SIGINT), partial(signal.signal, signal.SIGINT)),
}


@contextmanager
def kept() -> Iterator[None]:
    """Within it all of `PLACES` are as they were, or they are put back and an error names them.

    Raises:
        AssertionError: at the end, with what was changed, from what and to what.
    """
    before = {name: read() for name, (read, _) in PLACES.items()}
    yield
    after = {name: read() for name, (read, _) in PLACES.items()}
    changed = {name: (old, after[name]) for name, old in before.items() if old != after[name]}
    for name, (old, _) in changed.items():
        PLACES[name][1](old)
    assert not changed, f"this test leaves changed for those after it: {changed}"
