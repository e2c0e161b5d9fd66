"""Find which results, inputs and results of earlier calls share memory."""

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
    """Return a pytree's leaves with their paths (``['x'][0]``, or the leaf's index), and the pytree's ``TreeSpec``."""
    try:
        leaves, spec = tree_flatten_with_path(tree)
    except ValueError:
        flat, spec = tree_flatten(tree)
        return [(f"[{i}]", leaf) for i, leaf in enumerate(flat)], spec
    return [(keystr(path), leaf) for path, leaf in leaves], spec


def named_tensors(tree: object) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a pytree with their paths, in order."""
    return [(path, leaf) for path, leaf in named_leaves(tree)[0] if isinstance(leaf, torch.Tensor)]


@frozen(eq=False)
class Snapshot:
    """A snapshot of a pytree at one moment: tensors with copies of their values. Other objects are kept as ``str``."""

    rows: tuple[tuple[str, torch.Tensor, torch.Tensor], ...]
    printed: tuple[tuple[Any, str], ...] = ()

    @classmethod
    def take(cls, tree: object, *others: object) -> Snapshot:
        """Take a snapshot of the tensors in a pytree, and of the ``str`` of other objects."""
        rows = tuple((path, tensor, tensor.detach().clone()) for path, tensor in named_tensors(tree))
        return cls(rows, tuple((value, str(value)) for value in others))

    def describe_changes(self) -> str:
        """Return the paths of tensors and the types of other objects that changed since the snapshot; empty if none."""
        paths = [path for path, tensor, copy in self.rows if not _is_equal(tensor, copy)]
        return ", ".join([*paths, *(type(value).__name__ for value, text in self.printed if str(value) != text)])


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape and elements; NaN equals NaN."""
    return a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())


class ReturnedInputs(TorchFunctionMode):
    """A mode for an eager call that records, in ``tensors``, arguments that torch functions return as they are, such as
    the vector in ``flatten(vector)``. In torch.export's graph, argument and result are two values: where eager returns
    one tensor object, a compiled program may return two. In-place functions are not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        result = func(*args, **(kwargs or {}))
        in_place = getattr(func, "__name__", "_").endswith("_") or (kwargs or {}).get("inplace")
        if isinstance(result, torch.Tensor) and not in_place and any(result is value for value in args):
            self.tensors.append(result)
        return result


def describe_shared_memory(
    ours: object, our_inputs: object, eager: object, eager_inputs: object, returned: Sequence[torch.Tensor] = ()
) -> str:
    """Describe the first two tensors among our results and inputs that share memory, but not in eager; or that are one
    object in eager, but not in ours. Objects in ``returned`` may be two in ours (see `ReturnedInputs`). Return an empty
    text if there are none. ``ours`` and ``eager`` (results) have the same structure, and so do the inputs."""
    mine, other = (
        [*_labeled_tensors("result", results), *_labeled_tensors("input", inputs)]
        for results, inputs in ((ours, our_inputs), (eager, eager_inputs))
    )
    results = len(named_tensors(ours))
    for i, j in combinations(range(len(mine)), 2):
        (path, a), (other_path, b), (_, other_a), (_, other_b) = mine[i], mine[j], other[i], other[j]
        if i >= results:
            break
        if other_a is other_b and a is not b:
            if not any(other_a is known for known in returned):
                return f"{path} and {other_path} are one tensor in eager, and two here"
        elif _has_shared_memory(a, b) and not _has_shared_memory(other_a, other_b):
            return f"{path} and {other_path} share memory, but do not in eager PyTorch"
    return ""


def describe_memory_shared_by_calls(our_calls: Sequence[object], eager_calls: Sequence[object]) -> str:
    """Describe results of two successive calls that share memory although eager's do not; empty if none."""
    mine, other = ([named_tensors(results) for results in calls] for calls in (our_calls, eager_calls))
    for i, (path, a) in enumerate(mine[0]):
        for j, (other_path, b) in enumerate(mine[1]):
            if _has_shared_memory(a, b) and not _has_shared_memory(other[0][i][1], other[1][j][1]):
                return f"result{path} and result{other_path} of the next call share memory, but do not in eager PyTorch"
    return ""


def _labeled_tensors(label: str, tree: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a pytree with their paths, which begin with the label: ``input[0]``."""
    return ((f"{label}{path}", tensor) for path, tensor in named_tensors(tree))


def _has_shared_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors share memory."""
    return a.numel() > 0 and b.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
