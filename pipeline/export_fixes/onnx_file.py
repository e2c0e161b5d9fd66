"""Read an ONNX file as a torch module, converted by onnx2fx, with the inputs that the file declares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from attrs import frozen

from pipeline.aten.naming import make_unique
from pipeline.aten.types import Argument
from pipeline.errors import CaptureError, require_package
from pipeline.inputs import Input

Proto: TypeAlias = Argument


@frozen
class Node:
    """An ONNX node: its attributes, the names, dtypes and constant arrays of its inputs, and its output's dtype."""

    attributes: Mapping[str, Argument]
    names: tuple[str, ...]
    dtypes: tuple[np.dtype[Argument] | None, ...]
    output: np.dtype[Argument] | None
    arrays: tuple[Argument, ...]

    def string_attribute(self, name: str, default: str) -> str:
        """Return the value of a node's string attribute, or ``default`` if the node does not have it."""
        return str(self.attributes.get(name, default.encode()).decode())

    def has_input(self, index: int) -> bool:
        """Return whether a node has the optional input at this index."""
        return index < len(self.names) and bool(self.names[index])


def _is_resize_unlike_torch(node: Node) -> bool:
    """Return whether torch's ``interpolate`` cannot compute an ONNX ``Resize`` with these attributes and inputs."""
    mode = node.string_attribute("mode", "nearest")
    place = node.string_attribute("coordinate_transformation_mode", "half_pixel")
    scales = node.arrays[2] if node.has_input(2) else np.ones(1)
    whole = scales is not None and bool(np.all(scales == np.round(scales)))
    if mode == "nearest":
        nearest = place, node.string_attribute("nearest_mode", "round_prefer_floor")
        grows = node.has_input(2) and nearest == ("half_pixel", "round_prefer_floor")
        right = grows or nearest == ("asymmetric", "floor")
    else:
        coefficient = node.attributes.get("cubic_coeff_a", -0.75)
        right = place in ("half_pixel", "align_corners") and abs(coefficient + 0.75) < 1e-6
    others = any(node.attributes.get(name) for name in ("antialias", "exclude_outside", "axes"))
    return not (right and whole) or others or node.string_attribute("keep_aspect_ratio_policy", "stretch") != "stretch"


def _is_power_unlike_torch(node: Node) -> bool:
    """Return whether an ONNX ``Pow`` raises an integer to a float; ONNX converts the result to an integer."""
    base, exponent = (dtype.kind if dtype is not None else "" for dtype in node.dtypes)
    return base in "iu" and exponent == "f"


WRONG_CONVERSIONS: Final[Mapping[str, Callable[[Node], bool]]] = {
    **dict.fromkeys(("Attention", "ConvInteger", "DynamicQuantizeLinear", "EyeLike"), lambda node: True),
    **dict.fromkeys(("LpNormalization", "QLinearMatMul", "SoftmaxCrossEntropyLoss"), lambda node: True),
    **dict.fromkeys(("SplitToSequence", "Swish"), lambda node: True),
    "BatchNormalization": lambda node: bool(node.attributes.get("training_mode")),
    "Dropout": lambda node: node.has_input(2),
    "Pad": lambda node: node.has_input(3) or node.string_attribute("mode", "constant") == "wrap",
    "Pow": _is_power_unlike_torch,
    "QuantizeLinear": lambda node: node.output is None or node.output.itemsize != 1,
    "ReduceMax": lambda node: node.dtypes[0] == np.bool_,
    "Resize": _is_resize_unlike_torch,
    "SpaceToDepth": lambda node: node.string_attribute("mode", "DCR") != "DCR",
}
"""For some ONNX operators, a predicate: whether onnx2fx 0.0.1 converts the node incorrectly."""


def first_misconverted_node(file: Proto, nodes: Argument) -> Argument:
    """Return the first of ``nodes``, from an ONNX file with inferred dtypes, that onnx2fx converts wrongly, or None."""
    from onnx import helper, numpy_helper

    values = (*file.graph.value_info, *file.graph.input, *file.graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    kinds |= {each.name: each.data_type for each in file.graph.initializer}
    dtypes = {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items() if kind}
    held = {each.name: each for each in file.graph.initializer}
    for node in nodes:
        check = WRONG_CONVERSIONS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if check is None:
            continue
        arrays = tuple(numpy_helper.to_array(held[name]) if name in held else None for name in node.input)
        given = tuple(dtypes.get(name) for name in node.input)
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if check(Node(attributes, tuple(node.input), given, dtypes.get(node.output[0]), arrays)):
            return node
    return None


SUFFIX = ".onnx"


def is_onnx(model: object) -> bool:
    """Return whether a model is the path of an ONNX file."""
    return isinstance(model, str | os.PathLike) and Path(model).suffix == SUFFIX


@frozen
class OnnxFile:
    """An ONNX file as a module that accepts positional inputs, and returns a dict of outputs; its weights are buffers.
    ``inputs``: for each input an `Input`, or None if a size is dynamic; ``dynamic_input``: names the first such dim."""

    module: torch.nn.Module
    inputs: tuple[Input | None, ...]
    dynamic_input: str = ""


def open_onnx_model(model: Argument, args: Sequence[Argument], kwargs: object) -> tuple[Argument, Sequence[Argument]]:
    """Return an ONNX file's module and inputs (``args``, or else those of the file); return any other model unchanged.
    Raise `ValueError` if no inputs are given, although an input of the file has dynamic sizes."""
    if not is_onnx(model):
        return model, args
    file = read_onnx_file(model)
    if args or kwargs:
        return file.module, args
    if file.dynamic_input:
        due = "args=(pipeline.Input(min_shape=…, max_shape=…),)"
        raise ValueError(f"{model}: {file.dynamic_input} is dynamic, and the file has no range for it: pass {due}")
    return file.module, file.inputs


def read_onnx_file(path: str | os.PathLike[str]) -> OnnxFile:
    """Read an ONNX file and its external weight files.

    Raises:
        FileNotFoundError: the file does not exist.
        CaptureError: it is not an ONNX file, or onnx2fx does not support a node, which the message names.
        ImportError: onnx or onnx2fx is not installed.
    """
    require_package("onnx", "onnx")
    require_package("onnx2fx", "onnx")
    import onnx2fx
    from onnx2fx.utils.dtype import DTYPE_MAP

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    try:
        file = _load_and_check(os.fspath(path))
    except Exception as error:
        raise CaptureError(f"{path} is not a valid ONNX file: {error}", "export the model again") from error
    versions = {opset.domain: opset.version for opset in file.opset_import}
    for node in _all_nodes(file.graph):
        if not onnx2fx.is_supported(node.op_type, node.domain, versions.get(node.domain, 1)):
            kind = ".".join(filter(None, [node.domain, node.op_type]))
            raise CaptureError(f"{path}: onnx2fx cannot convert the node {node.name!r} ({kind})", _HINT)
    for value in (*file.graph.input, *file.graph.output):
        if DTYPE_MAP.get(value.type.tensor_type.elem_type) is None:
            raise CaptureError(f"{path}: the input or output {value.name} is not a tensor of numbers", _HINT)
    if (node := first_misconverted_node(file, _all_nodes(file.graph))) is not None:
        raise CaptureError(f"{path}: onnx2fx converts the node {node.name!r} ({node.op_type}) incorrectly", _HINT)
    try:
        module = onnx2fx.convert(file)
    except Exception as error:
        raise CaptureError(f"{path}: onnx2fx cannot convert this file: {error}", _HINT) from error
    weights = {each.name for each in file.graph.initializer}
    ports = [port for port in file.graph.input if port.name not in weights]
    varies = next((f"dim {dim} of the input {port.name}" for port in ports for dim in _dynamic_dims(port)), "")
    _replace_size_tensors(module, file, ports)
    return OnnxFile(_returning_dict(module, [o.name for o in file.graph.output]), tuple(map(_as_input, ports)), varies)


_HINT = "compile the PyTorch model that the file was exported from"


def _load_and_check(path: str) -> Proto:
    """Return the ONNX model in a file, with inlined functions, unique node names, and the shapes that onnx infers."""
    from onnx import checker, external_data_helper, inliner, load, shape_inference

    checker.check_model(path)
    file = load(path, load_external_data=False)
    file = inliner.inline_local_functions(file) if file.functions else file
    taken: set[str] = set()
    for node in _all_nodes(file.graph):
        node.name = make_unique(node.name or f"{node.op_type}:{','.join(node.output)}", taken)
    del file.graph.value_info[:]  # a file may have others than its nodes compute
    file = shape_inference.infer_shapes(file, data_prop=True)
    external_data_helper.load_external_data_for_model(file, str(Path(path).parent))
    return file


def _all_nodes(graph: Proto) -> Iterator[Proto]:
    """Yield the nodes of an ONNX graph and of its nested graphs (branches and loops)."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_nodes(inner)


SIZES: Final = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Resize": 3}
"""For each ONNX operator that takes sizes, the index of this argument in onnx2fx's node; it is a tensor or numbers."""


def _replace_size_tensors(module: torch.fx.GraphModule, file: Proto, ports: Sequence[Proto]) -> None:
    """Replace the tensor of sizes that ``Reshape`` and similar nodes take by the sizes that onnx inferred: torch.export
    cannot read sizes from a tensor. ``module`` was converted from ``file``; ``ports``: the file's inputs."""
    found = (*file.graph.value_info, *file.graph.output)
    shapes = {value.name: _declared_sizes(value) for value in found}
    outputs = {node.name: node.output[0] for node in file.graph.node}
    inputs = dict(zip((port.name for port in ports), module.graph.find_nodes(op="placeholder"), strict=True))
    for node in [each for each in module.graph.nodes if each.op == "call_function"]:
        kind = node.meta.get("onnx_op_type", "")
        node.target = _sizes_tensor if kind == "Shape" else node.target
        place = SIZES.get(kind)
        if place is None or getattr(node.args[place], "op", "") != "call_function":
            continue
        dims = shapes.get(outputs.get(node.meta["onnx_name"], ""), [])
        with module.graph.inserting_before(node):
            sizes = [_static_size_or_node(module.graph, dim, ports, inputs) for dim in dims]
        if not dims or 0 in dims or sizes.count(None) > (2 if kind == "Resize" else kind == "Reshape"):
            continue
        shape = tuple(-1 if size is None else size for size in sizes)
        if kind == "Reshape":  # onnx2fx makes ints of the sizes, which fixes those that vary
            node.target, node.args = torch.reshape, (node.args[0], shape)
        elif kind != "Resize" or all(isinstance(size, int) for size in sizes[2:]):  # images, channels: not resized
            node.update_arg(place, shape)
    module.graph.eliminate_dead_code()


def _sizes_tensor(x: torch.Tensor, start: int, end: int | None) -> torch.Tensor:
    """Return ``x.shape[start:end]`` as a tensor. torch.export knows the value only of a one-element tensor."""
    sizes = x.shape[start:end]
    return torch.full((1,), sizes[0]) if len(sizes) == 1 else torch.tensor(sizes, dtype=torch.int64)


def _static_size_or_node(
    graph: torch.fx.Graph, dim: int | str, ports: Sequence[Proto], inputs: Mapping[str, torch.fx.Node]
) -> Argument:
    """Return an int ``dim``; for a symbol, a node that reads it from an input in ``ports``, or None if none has it."""
    if isinstance(dim, int):
        return dim
    places = ((port.name, _declared_sizes(port).index(dim)) for port in ports if dim and dim in _declared_sizes(port))
    place = next(places, None)
    return None if place is None else graph.call_function(torch.ops.aten.sym_size.int, (inputs[place[0]], place[1]))


def _declared_sizes(value: Proto) -> list[int | str]:
    """Return the sizes of an ONNX value: ints, or the names of symbols ("" for an unnamed symbol)."""
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]


def _dynamic_dims(port: Proto) -> list[int]:
    """Return the dims of an ONNX graph input whose declared size is not a number."""
    return [place for place, dim in enumerate(_declared_sizes(port)) if isinstance(dim, str)]


def _as_input(port: Proto) -> Input | None:
    """Return an `Input` of the shape and dtype that the ONNX file declares; None if a size is dynamic."""
    from onnx2fx.utils.dtype import DTYPE_MAP

    dtype = DTYPE_MAP.get(port.type.tensor_type.elem_type)  # `read_onnx_file` refuses an input without one
    return None if _dynamic_dims(port) or dtype is None else Input(shape=_declared_sizes(port), dtype=dtype)


def _returning_dict(module: torch.fx.GraphModule, names: Sequence[str]) -> torch.nn.Module:
    """Return a module that runs the graph, returns a dict of outputs by name, and creates new tensors on the device of
    its inputs. A GraphModule would return an immutable dict in torch.export."""
    (values,) = module.graph.output_node().args
    rows = zip(names, values if isinstance(values, Sequence) else [values], strict=True)
    module.graph.output_node().args = (dict(rows),)
    module.recompile()
    generated = type(module).forward

    @wraps(generated)
    def forward(self: torch.nn.Module, *args: Argument, **kwargs: Argument) -> Argument:
        given = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        with nullcontext() if given is None else given.device:
            return generated(self, *args, **kwargs)

    made: torch.nn.Module = type("OnnxModel", (torch.nn.Module,), {"forward": forward})()
    made._buffers, made._parameters, made._modules = module._buffers, module._parameters, module._modules
    return made.eval()
