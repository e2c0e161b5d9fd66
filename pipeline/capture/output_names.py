"""Name a program's outputs by their keys in the model's return value, or by the user's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from pipeline.aten.naming import make_unique
from pipeline.aten.types import Spec
from pipeline.program import Program


def output_names(out_spec: Spec, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return a name for each output: ``logits``, ``hidden_states.0``; ``output`` for a single tensor, ``output.0`` for
    a position in a tuple. Equal names are numbered: ``a.b``, ``a.b_1``.

    Args:
        out_spec: the structure that the model returns.
        names: the names to use instead, in order.

    Raises:
        TypeError: ``names`` is not a sequence of strings.
        ValueError: the number of names is not the number of outputs, or a name is empty, used twice, or has several
            lines.
    """
    if names is None:
        taken: set[str] = set()
        return tuple(make_unique(name, taken) for name in _default_output_names(out_spec))
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'output_names is {names!r}: expected a sequence of names, such as ("logits",)')
    if len(names) != out_spec.num_leaves:
        outputs = f"{out_spec.num_leaves} outputs: {', '.join(_default_output_names(out_spec))}"
        raise ValueError(f"output_names has {len(names)} names, but the model has {outputs}")
    if wrong := [name for name, count in Counter(names).items() if count > 1 or not name]:
        raise ValueError(f"output_names has {f'the name {wrong[0]!r} twice' if wrong[0] else 'an empty name'}")
    if wrong := [name for name in names if not name.isprintable()]:
        raise ValueError(f"output_names has {wrong[0]!r}, which has a line break or another unprintable character")
    return tuple(names)


def name_outputs(program: Program, user_names: Sequence[str] | None = None) -> Program:
    """Return the program with named outputs; outputs for mutated inputs and buffers keep their names."""
    names = iter(output_names(program.out_spec, user_names))
    outputs = (evolve(o, name=next(names) if o.kind == "user" else o.target) for o in program.outputs)
    return evolve(program, outputs=tuple(outputs))


def _default_output_names(out_spec: Spec) -> list[str]:
    """Return the key path of each output in the model's return value (``hidden_states.0``), or else ``output.0``."""
    count = out_spec.num_leaves
    if count == 1 and not out_spec.num_children:
        return ["output"]
    leaves = [torch.empty((1, 1, 1, 1), device="meta") for _ in range(count)]  # caches of transformers take no numbers
    try:
        paths = [path for path, _ in tree_flatten_with_path(tree_unflatten(leaves, out_spec))[0]]
    except Exception:  # a type that was registered without keys, or that takes no such tensors
        paths = []
    return [_dotted_key_path(path) for path in paths] if len(paths) == count else [f"output.{i}" for i in range(count)]


def _dotted_key_path(path: Sequence[Any]) -> str:
    """Return a pytree key path as text: ``logits.0`` for ``out["logits"][0]``, ``output.0`` for ``out[0]``."""
    keys = [getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", None))) for entry in path]
    if any(key is None for key in keys):
        return keystr(tuple(path))
    text = ".".join(map(str, keys))
    return f"output.{text}" if text.replace(".", "").isdigit() else text
