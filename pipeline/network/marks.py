"""Define marks: a pass marks nodes for workarounds of bugs in TensorRT's kernels, and conversion applies these."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal, TypeAlias

from attrs import frozen

log = logging.getLogger(__name__)
MarkKind: TypeAlias = Literal["expanded", "apart", "converter", "may be empty"]


@frozen
class Mark:
    """An instruction to build the network of a segment (the nodes of one engine) so that it avoids a kernel with a bug.

    Attributes:
        quirk: the name of the kernel bug in the table `pipeline.quirks`.
        form: what to do. "expanded": separate layers broadcast the inputs `names` before the node; "apart": the node's
            result is computed in a kernel without later nodes; "converter": the node's converter uses an alternative
            implementation, for the inputs `names` if any; "may be empty": all converters expect sizes `names` of 0.
        node: the name of the node to change; empty for the whole segment.
        names: names of the node's inputs, or of sizes.
    """

    quirk: str
    form: MarkKind
    node: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f" of {', '.join(self.names)}" if self.names else ""
        return f"{self.node or 'all'}: {self.quirk} ({self.form}{what})"


class Marks:
    """The `Mark`s (kernel bugs to avoid) of a segment, by node. ``empty_sizes``: the input sizes that may be 0."""

    def __init__(self, marks: Iterable[Mark] | None = ()) -> None:
        """Group the marks by node; warn if ``marks`` is None, which means that no pass has set them."""
        self._by_node: dict[str, list[Mark]] = {}
        if marks is None:
            log.warning("no avoid_faults stage ran before convert: TensorRT may choose kernels with known bugs")
            marks = ()
        for mark in marks:
            self._by_node.setdefault(mark.node, []).append(mark)
        self.empty_sizes = frozenset(name for mark in self._by_node.get("", ()) for name in mark.names)

    def of_node(self, node: str, form: MarkKind) -> list[Mark]:
        """Return the `Mark`s of a node that ask for this change, such as "expanded"."""
        return [mark for mark in self._by_node.get(node, ()) if mark.form == form]

    def of_whole_segment(self) -> list[Mark]:
        """Return the `Mark`s that name no node, and so apply to the whole segment."""
        return self._by_node.get("", [])
