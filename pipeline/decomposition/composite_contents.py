"""Find the composites that contain an operator for which the user has a converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from pipeline.aten.types import Argument, Node
from pipeline.decomposition.candidates import Function, Ways
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Template, Templates, nodes_of
from pipeline.program import Program


@frozen(eq=False)
class Contents:
    """A search through decompositions, each traced once for each distinct signature.

    ``wanted`` decides whether the search is for a call (target, args, kwargs, value). Calls that depend only on
    constants do not count: they are folded, and no converter is called for them.
    """

    program: Program
    templates: Templates
    ways: Ways
    wanted: Callable[[Any, Any, Any, Any], bool]
    known: dict[Argument, bool] = field(factory=dict)

    def way(
        self, target: object, args: object, kwargs: object, value: object, constant: Mapping[Node, bool]
    ) -> Function | None:
        """Return the first decomposition of a call that leads to a wanted call; None if there is none."""
        given = tuple(constant[node] for node in nodes_of(args, kwargs))
        for function in self.ways.apart(target):
            template = self._template(function, target, args, kwargs, value)
            if template is not None and self._has(template, given):
                return function
        return None

    def _template(
        self, function: Function, target: object, args: object, kwargs: object, value: object
    ) -> Template | None:
        """Return the template of a decomposition; None if a registered one raises: the error is reported where it is
        used."""
        try:
            return self.templates.of(function, target, args, kwargs, value)
        except Exception:
            if function is not self.ways.own(target):
                raise
            return None

    def _has(self, template: Template, given: tuple[bool, ...]) -> bool:
        key = (template.key, given)
        if key not in self.known:
            self.known[key] = False  # during its own search: a recursive operator adds nothing new
            self.known[key] = self._search(template, given)
        return self.known[key]

    def _search(self, template: Template, given: tuple[bool, ...]) -> bool:
        constant: dict[Node, bool] = {}
        flags = iter(given)
        for node in template.graph.nodes:
            constant[node] = next(flags) if node.op == "placeholder" else is_constant(node, constant, self.program)
            if node.op == "call_function" and not constant[node] and self.contains(node, constant):
                return True
        return False

    def contains(self, node: Node, constant: Mapping[Node, bool]) -> bool:
        """Return whether a call is wanted, or decomposes to a wanted one."""
        call = (node.target, node.args, node.kwargs, node.meta.get("val"))
        return self.wanted(*call) or self.way(*call, constant) is not None
