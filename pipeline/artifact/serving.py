"""Write a saved program as a model repository for NVIDIA Triton Inference Server (``serve-config``)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from attrs import frozen

from pipeline.artifact import named_io
from pipeline.artifact.batching import batch_size_range, batching_obstacle
from pipeline.artifact.container import Reader
from pipeline.artifact.load import load
from pipeline.artifact.manifest_file import open_program_file, read_manifest
from pipeline.aten.dtypes import short_name
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Leaf
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError
from pipeline.program import Port
from pipeline.runtime.atomic import replace_file
from pipeline.shapes.environment import Range, shape_of

INTEGERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
TYPES = {
    **{getattr(torch, name): f"TYPE_{name.upper()}" for name in INTEGERS},
    torch.float16: "TYPE_FP16",
    torch.bfloat16: "TYPE_BF16",
    torch.float32: "TYPE_FP32",
    torch.float64: "TYPE_FP64",
}
"""Triton's name for each dtype; complex and 8-bit floating-point dtypes have none."""


@frozen
class TritonTensor:
    """An input or output in Triton's configuration. A dynamic size is -1; numbers and 0-dim tensors have shape [1]."""

    name: str
    dtype: torch.dtype
    dims: tuple[int, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.dims))
        return f"  {{\n    name: {_quote(self.name)}\n    data_type: {TYPES[self.dtype]}\n    dims: [ {sizes} ]\n  }}"


@frozen
class ServeConfig:
    """The contents of Triton's file config.pbtxt for a program.

    ``batch``: the range of the batch size if requests can be batched, else None. ``ranges``: the ranges of dynamic
    sizes, by input and dim (``x.0``). ``obstacle``: the reason why requests are not batched. ``operators``: the
    libraries whose operators the program may call.
    """

    name: str
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    batch: Range | None
    ranges: tuple[tuple[str, Range], ...]
    obstacle: str = ""
    operators: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_config_lines(self)) + "\n"


def serve_config(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    name: str | None = None,
    batching: bool | None = None,
    operators: Collection[str] = (),
) -> ServeConfig:
    """Write a model repository for Triton: ``NAME/config.pbtxt`` and ``NAME/1`` with the program and ``model.py``.

    Args:
        path: a file that `Compiled.save` wrote.
        folder: the repository, created if missing; other models in it stay.
        name: the model's name; None for the file's name.
        batching: True to batch requests if all inputs and outputs share their first dim; False not to; None to run the
            program on random rows, and batch requests only if a row's results do not depend on other rows.
        operators: as for `load`; the server allows the same operators.

    Raises:
        ArtifactError: the file cannot be loaded, its weights are outside its folder, or Triton lacks a dtype.
    """
    path = Path(path)
    name = re.sub(r"\W", "_", path.stem) if name is None else name
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not name.strip("."):
        raise ArtifactError(f"name is {name!r}, which Triton does not accept", "use only letters, digits, _, - and .")
    found, weights = triton_config(load(path, operators), name, batching, operators), _separate_weights_files(path)
    for source, target in ((path, "model.trtp"), *weights, (Path(__file__).with_name("triton_model.py"), "model.py")):
        place = Path(folder, name, "1", target)
        place.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as old, replace_file(place) as new:
            shutil.copyfileobj(old, new, 1 << 22)
    with replace_file(Path(folder, name, "config.pbtxt")) as file:
        file.write(str(found).encode())
    return found


def triton_config(compiled: Compiled, name: str, batching: bool | None, operators: Collection[str]) -> ServeConfig:
    """Return the configuration of a program for Triton; see `serve_config` for the arguments."""
    given, results = named_io.inputs_of(compiled.program), list(_result_ports(compiled))
    ports = [*given, *(port for _, port in results)]
    batch = batch_size_range(compiled.program, ports) if batching is not False else None
    why = batching_obstacle(compiled, ports) if batch is not None and batching is None else ""
    batch = None if why else batch
    return ServeConfig(
        name=name,
        inputs=tuple(_triton_tensor(port.name, port, batch) for port in given),
        outputs=tuple(_triton_tensor(out, port, batch) for out, port in results),
        batch=batch,
        ranges=tuple((f"{p.name}.{dim}", r) for p in given for dim, r in enumerate(p.ranges) if r.min != r.max),
        obstacle=why,
        operators=tuple(sorted(operators)),
    )


def _result_ports(compiled: Compiled) -> Iterator[tuple[str, Port]]:
    """Yield the outputs that are tensors or numbers, with their names; Triton does not return constants."""
    program, segments = compiled.program, compiled.partitioned.segments
    ports = {p.name: p for p in (*program.inputs, *(p for segment in segments for p in segment.outputs))}
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name, output in named_io.user_outputs_with_names(program):
        if output.constant or (output.value in ports and ports[output.value].kind == "constant"):
            continue
        value = nodes[output.value]
        if output.value in ports:
            yield name, ports[output.value]
        elif isinstance(value, torch.Tensor | TensorType):
            yield name, Port(name, value.dtype, shape_of(value))
        else:
            yield name, Port(name, torch.int64, kind="symint")


def _triton_tensor(name: str, port: Port, batch_sizes: Range | None) -> TritonTensor:
    dtype = port.dtype or torch.int64
    if dtype not in TYPES:
        raise ArtifactError(f"{name} is {short_name(dtype)}, a dtype that Triton lacks", "cast it in the model")
    sizes = tuple(size if isinstance(size, int) else -1 for size in port.shape)[batch_sizes is not None :]
    return TritonTensor(name, dtype, sizes or (1,))


def _separate_weights_files(path: Path) -> list[tuple[Path, str]]:
    """Return [(file, path relative to the program)] of a program's separate weights file; [] if it has none."""
    with open_program_file(path) as file:
        kept = read_manifest(Reader(file, str(path))).weights
    if kept.file and (".." in Path(kept.file).parts or Path(kept.file).is_absolute()):
        raise ArtifactError(f"{path} has its weights in another folder, {kept.file}", "save both in one folder")
    return [(path.parent / kept.file, kept.file)] if kept.file else []


def _config_lines(config: ServeConfig) -> Iterator[str]:
    yield f"name: {_quote(config.name)}"
    yield 'backend: "python"'
    if config.obstacle:
        yield f"# requests are not joined: {' '.join(config.obstacle.split())}"
    yield f"max_batch_size: {config.batch.max if config.batch else 0}"
    yield "input [\n" + ",\n".join(map(str, config.inputs)) + "\n]"
    yield "output [\n" + ",\n".join(map(str, config.outputs)) + "\n]"
    if config.batch:
        yield f"dynamic_batching {{ preferred_batch_size: [ {config.batch.opt} ] }}"
    yield "instance_group [ { kind: KIND_GPU } ]"
    yield from (_parameter_text(f"range.{place}", str(found)) for place, found in config.ranges)
    if config.operators:
        yield _parameter_text("ALLOW_OPERATORS", " ".join(config.operators))
    yield _parameter_text("FORCE_CPU_ONLY_INPUT_TENSORS", "no")


def _parameter_text(key: str, value: str) -> str:
    """Return a ``parameters`` entry of Triton's config.pbtxt as text."""
    return f"parameters {{ key: {_quote(key)} value: {{ string_value: {_quote(value)} }} }}"


def _quote(value: str) -> str:
    """Return a quoted string for config.pbtxt; quotes, backslashes, and all but printable ASCII are escaped."""
    plain = (c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\{b:03o}" for b in c.encode()) for c in value)
    return f'"{"".join(plain)}"'


def taken(port: Port, tensor: torch.Tensor) -> Leaf:
    """Convert Triton's tensor to an input of the program. Triton passes numbers and 0-dim tensors as [1]."""
    if port.kind != "tensor":
        return int(tensor)
    tensor = tensor.to(port.dtype) if port.dtype == torch.bool else tensor
    return tensor.reshape(()) if not port.shape else tensor


def sent(value: Leaf) -> torch.Tensor:
    """Convert an output of the program to a tensor for Triton."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    tensor = tensor.detach().contiguous()
    return (tensor.cpu() if tensor.dtype == torch.bool else tensor).reshape(tensor.shape or (1,))
