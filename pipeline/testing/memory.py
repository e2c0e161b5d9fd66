"""Find which results, inputs and earlier results share memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from attrs import frozen
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path

from pipeline.aten.types import Argument, Target


def named_leaves(tree: object) -> tuple[list[tuple[str, object]], object]:
    """Return a pytree's leaves with their paths (numbers for types registered without keys), and its structure."""
    try:
        leaves, spec = tree_flatten_with_path(tree)
    except ValueError:
        flat, spec = tree_flatten(tree)
        return [(f"[{i}]", leaf) for i, leaf in enumerate(flat)], spec
    return [(keystr(path), leaf) for path, leaf in leaves], spec


def tensors(tree: object) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a pytree with their paths, in order."""
    return [(where, leaf) for where, leaf in named_leaves(tree)[0] if isinstance(leaf, torch.Tensor)]


@frozen(eq=False)
class Snapshot:
    """A snapshot of a pytree: its tensors, with copies, and the texts of other leaves."""

    rows: tuple[tuple[str, torch.Tensor, torch.Tensor], ...]
    printed: tuple[tuple[Any, str], ...] = ()

    @classmethod
    def of(cls, tree: object, *others: object) -> Snapshot:
        """Take a snapshot of a pytree."""
        rows = tuple((place, tensor, tensor.detach().clone()) for place, tensor in tensors(tree))
        return cls(rows, tuple((value, str(value)) for value in others))

    def changes(self) -> str:
        """Return the paths of tensors that differ from their copies, and the types of other leaves that changed."""
        places = [place for place, tensor, copy in self.rows if not _same(tensor, copy)]
        return ", ".join([*places, *(type(value).__name__ for value, text in self.printed if str(value) != text)])


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())


class Echoes(TorchFunctionMode):
    """A recorder of input tensors that functions return unchanged, as ``flatten`` does with a vector. torch.export's
    graph has separate values for input and result, so their identity is lost. In-place functions are not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[torch.Tensor] = []

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        result = func(*args, **(kwargs or {}))
        in_place = getattr(func, "__name__", "_").endswith("_") or (kwargs or {}).get("inplace")
        if isinstance(result, torch.Tensor) and not in_place and any(result is value for value in args):
            self.heard.append(result)
        return result


def sharing(
    ours: object, our_inputs: object, theirs: object, their_inputs: object, echoes: Sequence[torch.Tensor] = ()
) -> str:
    """Describe which of our tensors share memory although theirs do not, or are distinct although theirs are the same
    tensor, except ``echoes``; empty if none. Both pytrees have the same structure."""
    mine, other = (
        [*_rows("result", results), *_rows("input", inputs)]
        for results, inputs in ((ours, our_inputs), (theirs, their_inputs))
    )
    results = len(tensors(ours))
    for i, j in combinations(range(len(mine)), 2):
        (place, a), (there, b), (_, other_a), (_, other_b) = mine[i], mine[j], other[i], other[j]
        if i >= results:
            break
        if other_a is other_b and a is not b:
            if not any(other_a is echo for echo in echoes):
                return f"{place} and {there} are one tensor in eager, and two here"
        elif _share(a, b) and not _share(other_a, other_b):
            return f"{place} and {there} share memory, and do not in eager"
    return ""


def kept(ours: Sequence[object], theirs: Sequence[object]) -> str:
    """Describe which results of two calls share memory although eager's do not; empty if none."""
    mine, other = ([tensors(results) for results in calls] for calls in (ours, theirs))
    for i, (place, a) in enumerate(mine[0]):
        for j, (there, b) in enumerate(mine[1]):
            if _share(a, b) and not _share(other[0][i][1], other[1][j][1]):
                return f"result{place} and result{there} of the next call share memory, and do not in eager"
    return ""


def _rows(what: str, tree: object) -> Iterator[tuple[str, torch.Tensor]]:
    return ((f"{what}{place}", tensor) for place, tensor in tensors(tree))


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors share memory."""
    return a.numel() > 0 and b.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
