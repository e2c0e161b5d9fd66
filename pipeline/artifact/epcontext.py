"""Save a program for ONNX Runtime: an ONNX file with one ``EPContext`` node, which the TensorRT provider loads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, get_args

import torch
from attrs import evolve

from pipeline.artifact.named_io import inputs_of, user_outputs_with_names
from pipeline.artifact.save import INSIDE, save
from pipeline.aten.dtypes import short_name
from pipeline.aten.types import Argument
from pipeline.compiled import Compiled, Format, StrPath
from pipeline.errors import ArtifactError, require_package
from pipeline.program import Output, Port
from pipeline.runtime.atomic import replace_file
from pipeline.version import __version__

ELEMENTS: Final[Mapping[torch.dtype, str]] = {
    **{getattr(torch, name): name.upper() for name in ("bool", "uint8", "int8", "int32", "int64")},
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.float32: "FLOAT",
    torch.float8_e4m3fn: "FLOAT8E4M3FN",
}
"""ONNX's name for each dtype that ONNX Runtime's TensorRT provider accepts as inputs and outputs."""
IR_VERSION: Final = 10
"""The version of ONNX's format, which introduced the newest of these dtypes; newer versions of ONNX Runtime read it."""
LARGEST: Final = (1 << 31) - (1 << 20)
"""The maximum bytes of a plan inside an ONNX file, since protobuf's messages have less than 2 GiB."""
OPSET: Final = 21


def save_in_format(compiled: Compiled, path: StrPath, weights: StrPath, format: str) -> None:
    """Save a program as ``.trtp`` or for ONNX Runtime, according to ``format``; see `Compiled.save`."""
    if format not in get_args(Format):
        raise ValueError(f"format is {format!r}: expected {' or '.join(map(repr, get_args(Format)))}")
    (save_epcontext if format == "epcontext" else save)(compiled, path, weights)


def save_epcontext(compiled: Compiled, path: StrPath, plan: StrPath = INSIDE) -> None:
    """Write an ONNX file whose only node is the program's engine, with the model's inputs and outputs. Only the
    TensorRT version that built the plan can load it. ``plan``: ``"inside"`` the ONNX file (at most 2 GiB), or the path
    of a separate file in the same folder or below."""
    if reason := next(filter(None, _export_obstacles(compiled)), ""):
        hint = "save the program without format=; `pipeline.load` and `pipeline serve-config` read that file"
        raise ArtifactError(f"the program cannot be saved as an EPContext node of ONNX: {reason}", hint)
    target, inside = Path(path), os.fspath(plan) == INSIDE
    content = memoryview(compiled.engines[0].checked_plan())
    if inside and content.nbytes > LARGEST:
        why = f"the engine plan has {content.nbytes} bytes, and an ONNX file can have at most 2 GiB"
        raise ArtifactError(why, "save the plan in a separate file: weights='model.plan'")
    held = bytes(content) if inside else _relative_plan_path(Path(plan), target).encode()
    message = _onnx_model(compiled, target.stem, held, embed_plan=inside)
    if not inside:
        with replace_file(Path(plan), nbytes=lambda: content.nbytes) as file:
            file.write(content)
    with replace_file(target, nbytes=lambda: len(message)) as file:
        file.write(message)


def _export_obstacles(compiled: Compiled) -> Iterator[str]:
    """Yield why a program cannot be an ONNX file: it must be one engine whose inputs and outputs are all tensors."""
    program, partitioned = compiled.program, compiled.partitioned
    if program.buffers:
        yield f"it updates the buffer {next(iter(program.buffers.values()))}, and a session keeps no state"
    for output in program.outputs:
        if output.kind != "user":
            yield f"a call also has to write or check {output.target or output.name} ({output.kind})"
    for fallback in partitioned.fallbacks:
        yield f"an operator runs in PyTorch: {fallback}"
    kinds = [segment.kind for segment in partitioned.segments]
    if kinds == ["engine"]:
        yield from map(_port_obstacle, (*inputs_of(program), *partitioned.segments[0].outputs))
        yield from _onnx_obstacles_of_outputs(compiled)
        yield from _engine_obstacles(compiled)
    else:
        uncut = " (pipeline.in_pieces(1) does not cut large engines)" if {*kinds} == {"engine"} else ""
        yield f"it has {len(kinds)} segments, expected one engine{uncut}"


def _port_obstacle(port: Port) -> str:
    """Return why ONNX Runtime cannot accept this value as an input or return it as an output; empty if it can."""
    if port.kind != "tensor":
        return f"{port.name} is a number, and a session takes and returns only tensors"
    if (dtype := port.dtype or torch.int64) not in ELEMENTS:
        return f"{port.name} is {short_name(dtype)}, which ONNX Runtime's provider does not support"
    return "" if port.layout == torch.strided else f"{port.name} is {port.layout}, expected a strided tensor"


def _onnx_obstacles_of_outputs(compiled: Compiled) -> Iterator[str]:
    """Yield why a model's outputs cannot be ONNX outputs: one is not computed by the engine, or two are one tensor."""
    computed = {port.name for port in compiled.partitioned.segments[0].outputs}
    names: dict[str, str] = {}
    for name, output in _named_result_outputs(compiled):
        if output.value not in computed:
            yield f"the output {name} is an input or a constant, which no engine computes"
        elif (other := names.setdefault(output.value, name)) != name:
            yield f"the outputs {other} and {name} are the same tensor"


def _engine_obstacles(compiled: Compiled) -> Iterator[str]:
    """Yield why an ONNX file cannot contain the engine: several profiles, inputs that the model lacks, no weights …"""
    engine, network = compiled.engines[0], compiled.networks[0]
    if engine.stripped:
        yield "its plan was built without weights (strip_engine_weights=True)"
    if engine.bindings:
        ours, theirs = next(iter(engine.bindings.items()))
        yield f"its plan, which may be from the engine cache, has {ours} under the name {theirs!r}"
    if len(network.profiles) > 1:
        yield f"it has {len(network.profiles)} profiles, and ONNX Runtime's provider uses only the first"
    ports = {port.name: port for port in (*inputs_of(compiled.program), *_named_output_ports(compiled))}
    for tensor in (*network.inputs, *network.outputs):
        if (port := ports.get(tensor.name)) is None:
            yield f"its engine reads {tensor.name}, which is not an input of the model"
        elif short_name(port.dtype) != tensor.dtype:
            yield f"{tensor.name} is {tensor.dtype} in the engine, but {port.dtype} in the model"


def _named_result_outputs(compiled: Compiled) -> Iterator[tuple[str, Output]]:
    """Yield (name in the ONNX file, output) for each output of the model that is not a constant."""
    return ((name, output) for name, output in user_outputs_with_names(compiled.program) if not output.constant)


def _named_output_ports(compiled: Compiled) -> list[Port]:
    """Return the engine's output ports, each renamed to the name of the model's output that it computes."""
    computed = {port.name: port for port in compiled.partitioned.segments[0].outputs}
    rows = ((name, computed.get(output.value)) for name, output in _named_result_outputs(compiled))
    return [evolve(port, name=name) for name, port in rows if port is not None]


def _onnx_model(compiled: Compiled, name: str, plan_or_path: bytes, *, embed_plan: bool) -> bytes:
    """Return the bytes of an ONNX model. Its only node contains the plan (``embed_plan``), or the plan's relative path.
    The node's optional attribute ``source`` is omitted, since ONNX Runtime compares it with the name under which an
    application registers the TensorRT provider."""
    require_package("onnx", "onnx")
    from onnx import TensorProto, checker, helper

    def value(port: Port) -> Argument:
        shape = [size if isinstance(size, int) else str(size) for size in port.shape]
        return helper.make_tensor_value_info(
            port.name, getattr(TensorProto, ELEMENTS[port.dtype or torch.int64]), shape
        )

    inputs, outputs, network = inputs_of(compiled.program), _named_output_ports(compiled), compiled.networks[0]
    node = helper.make_node(
        "EPContext",
        [tensor.name for tensor in network.inputs],
        [port.name for port in outputs],
        name=network.name,
        domain="com.microsoft",
        main_context=1,
        embed_mode=int(embed_plan),
        ep_cache_context=plan_or_path,
        ep_sdk_version=compiled.engines[0].library.split()[-1],
        hardware_architecture=",".join(compiled.settings.compute_capabilities).replace(".", "") or "80+",
        partition_name=network.name,
    )
    graph = helper.make_graph([node], name, [*map(value, inputs)], [*map(value, outputs)])
    opsets = helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="pipeline", producer_version=__version__
    )
    data: bytes = model.SerializeToString()
    checker.check_model(data)
    return data


def _relative_plan_path(plan: Path, model: Path) -> str:
    """Return a plan's path relative to the folder of the ONNX file, where ONNX Runtime looks for the plan."""
    file, place = (Path(os.path.normpath(path.absolute())) for path in (model, plan))
    if place == file:
        raise ArtifactError(f"weights={str(plan)!r} is the ONNX file itself", 'pass another file, or weights="inside"')
    if plan.name.lower() in ("none", ""):
        raise ArtifactError(f"weights={str(plan)!r} is not a file name", 'pass "inside", or for example "model.plan"')
    if not place.is_relative_to(file.parent):
        hint = "save the plan in that folder: ONNX Runtime reads no plans from other folders"
        raise ArtifactError(f"the engine plan {plan} is outside the folder of the ONNX file {model}", hint)
    return place.relative_to(file.parent).as_posix()
