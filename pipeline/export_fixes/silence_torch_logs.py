"""Keep what torch logs and prints on the way from the user: what matters it raises as well.

It is logged as ``pipeline.torch`` at DEBUG. Who sets ``TORCH_LOGS`` gets torch's logs as well.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from pipeline.aten.types import Argument

log = logging.getLogger("pipeline.torch")


def logs(own: Callable[..., None]) -> Callable[..., None]:
    """Wrap `logging.Logger.handle` to keep torch's warnings and errors apart."""

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        is_torchs = record.name.partition(".")[0] == "torch" and record.levelno >= logging.WARNING
        if is_torchs and not os.environ.get("TORCH_LOGS"):
            log.debug("%s: %s", record.name, record.getMessage(), exc_info=record.exc_info)
        else:
            own(logger, record)

    return handle


def prints(_: Callable[..., object]) -> Callable[..., None]:
    """Replace `get_class_if_classified_error`: print no advice and no graph before an error."""

    def get_class_if_classified_error(error: Argument) -> None:
        if hasattr(error, "partial_fx_graph"):
            log.debug("what was traced before the error:\n%s", error.partial_fx_graph)
            del error.partial_fx_graph

    return get_class_if_classified_error


def said_already(reason: str) -> None:
    """Keep back the warning in which Dynamo repeats why a graph was broken, unless ``TORCH_LOGS`` is set."""
    if not os.environ.get("TORCH_LOGS"):
        dynamos = logging.getLogger("torch._dynamo.exc")

        def repeats(record: logging.LogRecord) -> bool:
            """Say whether to keep a record; this filter is removed by the one that it drops."""
            if reason not in record.getMessage():
                return True
            dynamos.removeFilter(repeats)
            return False

        dynamos.addFilter(repeats)
