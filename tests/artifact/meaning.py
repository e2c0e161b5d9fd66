"""What a file says, computed from its records by other means than `pipeline`: for the fuzzer, which compares numbers.

It reads the JSON of the entries and nothing of `pipeline`, computes values when they are asked for, and knows the few
layers and arguments of the fuzzer's programs. `UnknownError` is raised for everything else.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load

Records = Mapping[str, Any]
ELEMENTWISE: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "SUM": operator.add,
    "PROD": operator.mul,
    "SUB": operator.sub,
    "GREATER": operator.gt,
    "LESS": operator.lt,
    "EQUAL": operator.eq,
    "AND": operator.and_,
    "OR": operator.or_,
}
UNARY: Final = {"SIN": torch.sin, "COS": torch.cos, "EXP": torch.exp, "ABS": torch.abs, "NEG": torch.neg}
SIZES: Final[Mapping[str, Callable[..., Any]]] = {
    "Add": lambda *args: sum(args),
    "Mul": lambda *args: math.prod(args),
    "Max": max,
    "Min": min,
    "ToFloat": float,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "TruncToInt": math.trunc,
    "FloatPow": operator.pow,
    "Pow": operator.pow,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
}
FUNCTIONS: Final = {"operator": operator, "math": math, "builtins": builtins}
RANDOM: Final = torch.Tag.nondeterministic_seeded


class UnknownError(Exception):
    """The file says something that is not known here."""


class Meaning:
    """A program of records and binary entries, on inputs: `outputs` computes what it returns."""

    def __init__(self, records: Records, binary: Mapping[str, bytes], inputs: Sequence[Any]) -> None:
        self.records, self.manifest = records, records["manifest.json"]
        if dict(self.manifest.get("settings", ())).get("truncate_double") or self.manifest.get("profiles"):
            raise UnknownError("settings or profiles")
        self.tensors = _tensors(binary, self.manifest["weights"])
        self.parameters = {name: self.kept(row) for name, row in self.manifest["parameters"]}
        self.values: dict[str, Any] = {}
        self.symbols: dict[str, int] = {}
        for port, value in zip(self.manifest["inputs"], inputs, strict=True):
            self.values[port["name"]] = value
            for size, count in zip(port.get("shape", ()), getattr(value, "shape", ()), strict=True):
                if isinstance(size, list) and size[0] == "Symbol":
                    self.symbols.setdefault(size[1], count)
        for name, buffer in self.manifest.get("buffers", ()):
            self.values[name] = self.parameters[buffer]
        self.rows = {row["name"]: row for name in self.manifest["graphs"] for row in records[name]["nodes"]}
        names = (segment["name"] for segment in self.manifest["segments"] if segment["kind"] == "engine")
        self.networks = {name: records[entry] for name, entry in zip(names, self.manifest["networks"], strict=True)}

    def outputs(self) -> list[Any]:
        """The results, in order."""
        for segment in self.manifest["segments"]:
            run = self.engine if segment["kind"] == "engine" else self.torch
            results = run(segment, [self.taken(port) for port in segment["inputs"]])
            for port, value in zip(segment["outputs"], results, strict=True):
                self.values[port["name"]] = value
        users = [row for row in self.manifest["outputs"] if row.get("kind", "user") == "user"]
        held, written = dict(self.manifest.get("buffers", ())), {}
        for row in self.manifest["outputs"]:
            if row.get("kind") == "buffer":
                written[row["target"]] = row["value"]
        if any(row.get("target") in held and written.get(held[row["target"]]) != row["value"] for row in users):
            raise UnknownError("a buffer that is returned, and has another value after the call")
        return [row["value"] if row.get("constant") else self.returned(row["value"]) for row in users]

    def returned(self, name: str) -> Any:
        """A value that the program returns; a number is what its size says."""
        value = self.rows[name].get("value") if name in self.rows else None
        if isinstance(value, dict) and "size" in value:
            return self.size(value["size"])
        found = self.values[name] if name in self.values else self.constant(name)
        if isinstance(value, dict) and "tensor" in value and isinstance(found, torch.Tensor):
            return found.to(getattr(torch, value["tensor"]["dtype"]))
        return found

    def taken(self, port: Records) -> Any:
        """An input of a segment."""
        if port.get("kind", "tensor") == "constant" or port["name"] in dict(self.manifest["constants"]):
            raise UnknownError("a constant as an input")
        if port.get("kind", "tensor") == "tensor":
            return self.values[port["name"]]
        return self.size(port["value"]["size"] if isinstance(port["value"], dict) else port["value"])

    def constant(self, name: str) -> torch.Tensor:
        """A constant of the program, by its placeholder."""
        return self.recipe(dict(self.manifest["constants"])[name])

    def recipe(self, recipe: Records) -> torch.Tensor:
        """What a recipe computes."""
        known: dict[str, Any] = dict(self.parameters)
        for step in recipe.get("steps", ()):
            args = [self.plain(arg, known) for arg in step.get("args", ())]
            known[step["name"]] = _operator(step["target"])(
                *args, **{k: self.plain(v, known) for k, v in step.get("kwargs", ())}
            )
        if "dtype" in recipe:
            raise UnknownError("a recipe's dtype")
        result: torch.Tensor = known[recipe["result"]["name"]]
        return result

    def kept(self, row: Records) -> torch.Tensor:
        """A tensor of the file."""
        return self.tensors[row["key"]]

    def size(self, data: Any) -> Any:
        """The value of an expression."""
        if isinstance(data, (bool, int, float)):
            return data
        head, *rest = data
        if head == "Symbol":
            if rest[0] not in self.symbols:
                raise UnknownError("a size that data has")
            return self.symbols[rest[0]]
        if head.removesuffix("!") not in SIZES:
            raise UnknownError(head)
        return SIZES[head.removesuffix("!")](*map(self.size, rest))

    def plain(self, data: Any, known: Mapping[str, Any]) -> Any:
        """An argument of a call."""
        if isinstance(data, list):
            return [self.plain(part, known) for part in data]
        if not isinstance(data, dict):
            return data
        (kind, value), *_ = data.items()
        if kind in ("node", "ref"):
            return known[value]
        if kind == "tuple":
            return tuple(self.plain(part, known) for part in value)
        if kind == "dict":
            return {key: self.plain(part, known) for key, part in value}
        if kind == "dtype":
            return getattr(torch, value)
        raise UnknownError(kind)

    def torch(self, segment: Records, inputs: Sequence[Any]) -> list[Any]:
        """A segment in PyTorch: its nodes, in order."""
        names = [port["name"] for port in segment["inputs"]]
        known = _Nodes(self, dict(zip(names, inputs, strict=True)), segment.get("constants", ()))
        for name in segment["nodes"]:
            known[name]
        return [known[port["name"]] for port in segment["outputs"]]

    def engine(self, segment: Records, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A segment in an engine: the layers of its network that its outputs need."""
        network = self.networks[segment["name"]]
        tensors = map(torch.as_tensor, inputs)
        known = {row["name"]: value for row, value in zip(network["inputs"], tensors, strict=True)}
        makers = {row["name"]: layer for layer in network["layers"] for row in layer["outputs"]}
        return [self.layer_value(row["name"], known, makers) for row in network["outputs"]]

    def layer_value(self, name: str, known: dict[str, torch.Tensor], makers: Mapping[str, Records]) -> torch.Tensor:
        """A tensor of a network."""
        if name not in known:
            layer = makers[name]
            inputs = [self.layer_value(each, known, makers) for each in layer.get("inputs", ())]
            known[name] = self.layer(layer, inputs)
        return known[name]

    def layer(self, layer: Records, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result of a layer."""
        said = dict(layer.get("attributes", ()))
        match layer["kind"], inputs:
            case "CONSTANT", []:
                return self.weight(dict(layer["weights"])["weights"]).reshape(said["shape"]["tuple"])
            case "MATRIX_MULTIPLY", [a, b]:
                a, b = (x.mT if said[op] == "TRANSPOSE" else x for op, x in (("op0", a), ("op1", b)))
                if all(said[op] in ("NONE", "TRANSPOSE") for op in ("op0", "op1")):
                    return a @ b
            case "ELEMENTWISE", [a, b] if said["op"] in ELEMENTWISE:
                return ELEMENTWISE[said["op"]](a, b)
            case "UNARY", [x] if said["op"] in UNARY:
                return UNARY[said["op"]](x)
            case "REDUCE", [x] if said["op"] == "SUM":
                return x.sum(said["axes"]["tuple"], keepdim=bool(said["keep_dims"])) if said["axes"]["tuple"] else x
            case "SOFTMAX", [x]:
                (axis,) = said["axes"]["tuple"]
                return x.softmax(axis)
            case "SELECT", [condition, one, other]:
                return torch.where(condition, one, other)
            case "UNSQUEEZE", [x, axes]:
                rank = x.dim() + axes.numel()
                for axis in sorted(int(each) % rank for each in axes.flatten()):
                    x = x.unsqueeze(axis)
                return x
        raise UnknownError(layer["kind"])

    def weight(self, name: str) -> torch.Tensor:
        """A weight of a network: a literal, or what its recipe computes."""
        recipes = dict((self.manifest["refit_map"] or {}).get("recipes", ()))
        return self.recipe(recipes[name]) if name in recipes else self.kept(dict(self.manifest["literals"])[name])


class _Nodes(dict[str, Any]):
    """The values of nodes, computed when they are asked for."""

    def __init__(self, program: Meaning, known: dict[str, Any], constants: Sequence[str]) -> None:
        super().__init__(known)
        self.program, self.constants = program, constants

    def __missing__(self, name: str) -> Any:
        if name in self.constants:
            self[name] = self.program.constant(name)
            return self[name]
        row = self.program.rows[name]
        if row["op"] != "call_function" or not row.get("calls", True):
            raise UnknownError(f"a {row['op']} in PyTorch")
        args, kwargs = self.program.plain(row["args"], self), self.program.plain(row["kwargs"], self)
        self[name] = _operator(row["target"])(*args, **kwargs)
        return self[name]


def _operator(name: str) -> Callable[..., Any]:
    space, short, *overload = name.split(".")
    if space in FUNCTIONS:
        return getattr(FUNCTIONS[space], short)  # type: ignore[no-any-return]
    if space not in ("aten", "prims"):
        raise UnknownError(name)
    found = getattr(getattr(getattr(torch.ops, space), short), overload[0])
    if RANDOM in found.tags or "empty" in short:
        raise UnknownError(name)
    return found  # type: ignore[no-any-return]


def _tensors(binary: Mapping[str, bytes], where: Records) -> Mapping[str, torch.Tensor]:
    if not where.get("entry"):
        return {}
    if where.get("file") or where.get("others"):
        raise UnknownError("weights beside the file")
    try:
        return load(binary[where["entry"]])
    except SafetensorError:
        raise UnknownError("weights that safetensors does not read") from None
