"""``Bisection`` and ``Fault``: the results of a search for wrong nodes, as frozen records that can be printed."""

from __future__ import annotations

from attrs import field, frozen

from pipeline.records.agreement import Agreement, OutputAgreement


@frozen
class Fault:
    """A smallest set of nodes whose engine returns wrong results: without any of the nodes, results are correct.
    Usually the set has a single node.

    nodes, targets, lines: the nodes, their operators, and the user's source lines that created them.
    failures: the rows of the agreement whose error exceeds the bound if only these nodes run in TensorRT.
    """

    nodes: tuple[str, ...]
    targets: tuple[str, ...]
    lines: tuple[str, ...]
    failures: tuple[OutputAgreement, ...] = ()

    def __str__(self) -> str:
        rows = zip(self.nodes, self.targets, self.lines, strict=True)
        nodes = [f"{target} at node {node}" + (f" ({line})" if line else "") for node, target, line in rows]
        together = ["together:"] if len(nodes) > 1 else []
        return "\n".join([*together, *nodes, *(f"  {row}" for row in self.failures)])


@frozen
class Bisection:
    """The result of `pipeline.bisect`.

    faults: the smallest sets of nodes whose engines return wrong results; no node is in two of them. Empty if the
        program agrees with eager: all its errors are within their bounds.
    builds: the number of programs compiled for the search, including the whole program.
    agreement: the agreement of the whole program.
    complete: True if all faults were found: with only the other nodes in TensorRT, results agree with eager. False if
        the search reached its limit of builds; the last fault may then be larger than necessary.
    script: a Python script that reproduces the first fault: it prints the errors, and exits with 1 if the engine is
        wrong.
    """

    faults: tuple[Fault, ...]
    builds: int
    agreement: Agreement
    complete: bool = True
    script: str = field(default="", repr=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes of all faults."""
        return tuple(node for fault in self.faults for node in fault.nodes)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the operators of the nodes of all faults."""
        return tuple(target for fault in self.faults for target in fault.targets)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the user's source lines that created the nodes of all faults."""
        return tuple(line for fault in self.faults for line in fault.lines)

    def __str__(self) -> str:
        if not self.faults:
            return f"no operator returns wrong values\n{self.agreement}"
        count = f"{len(self.faults)} fault{'s'[: len(self.faults) != 1]} in {self.builds} builds"
        rest = [] if self.complete else ["the search ended at its limit of builds: there may be more, and smaller ones"]
        return "\n".join([count, *map(str, self.faults), *rest])
