"""Marks of nodes: where a fault of TensorRT's kernels is avoided. A pass makes them, and conversion follows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal, TypeAlias

from attrs import frozen

log = logging.getLogger(__name__)
Form: TypeAlias = Literal["expanded", "apart", "converter", "may be empty"]


@frozen
class Mark:
    """A place where a segment's network differs from the plain one, so that a kernel is right.

    Attributes:
        quirk: the row of the table of faults (`pipeline.quirks`).
        form: "expanded": the inputs `names` are broadcast by layers of their own before the node; "apart": the result
            of the node is computed in a kernel of its own; "converter": the node's converter takes another form, for
            its inputs `names` if there are some; "may be empty": calls may have none of the sizes `names`.
        node: the node; empty for all of the segment.
        names: names of the node's inputs, or of sizes.
    """

    quirk: str
    form: Form
    node: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f" of {', '.join(self.names)}" if self.names else ""
        return f"{self.node or 'all'}: {self.quirk} ({self.form}{what})"


class Marks:
    """The marks of a segment, by node.

    Attributes:
        empty_sizes: the names of the sizes of inputs of which a call may have none.
    """

    def __init__(self, marks: Iterable[Mark] | None = ()) -> None:
        """Group marks by node; warn if no pass made any (None)."""
        self._by_node: dict[str, list[Mark]] = {}
        if marks is None:
            log.warning("no stage avoid_faults ran before convert: TensorRT may use kernels that are known to be wrong")
            marks = ()
        for mark in marks:
            self._by_node.setdefault(mark.node, []).append(mark)
        self.empty_sizes = frozenset(name for mark in self._by_node.get("", ()) for name in mark.names)

    def of(self, node: str, form: Form) -> list[Mark]:
        """The marks of a node that have this form."""
        return [mark for mark in self._by_node.get(node, ()) if mark.form == form]

    def of_segment(self) -> list[Mark]:
        """The marks that are of no node."""
        return self._by_node.get("", [])
