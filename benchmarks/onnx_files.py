"""``python -m benchmarks.onnx_files FOLDER``: ONNX files compiled by this package, beside TensorRT's own parser.

With ``--export`` ten models of torchvision and timm are written there, with random weights and images of 224 by 224 in
a batch from 1 to 8, each with PyTorch's result of an image. Without, each file is compiled both ways on this GPU, and
measured in turns at batch 8, in CUDA graphs. The weights repeat a short piece, so that the folder can be packed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import pipeline
from benchmarks.environment import save
from benchmarks.markdown import filled, table, where
from benchmarks.methods import Call
from benchmarks.turns import in_turns
from pipeline.cli.usage import first_line
from pipeline.trt import LIBRARY, Log, new_network, trt

BATCH, PERIOD = 8, 4099
"""The largest batch, and the numbers after which a weight repeats."""
MODELS = (
    *("torchvision resnet18", "torchvision mobilenet_v3_small", "torchvision efficientnet_b0", "torchvision swin_t"),
    *("torchvision lraspp_mobilenet_v3_large", "timm vit_tiny_patch16_224", "timm mobilevit_xxs"),
    *("timm convnext_atto", "timm ghostnet_100", "timm eva02_tiny_patch14_224"),
)


def model_of(name: str) -> torch.nn.Module:
    """A model by its library and name."""
    library, model = name.split()
    torch.manual_seed(0)
    if library == "timm":
        import timm

        made: torch.nn.Module = timm.create_model(model)
    else:
        import torchvision

        own = {"weights_backbone": None} if "lraspp" in model else {}
        made = torchvision.models.get_model(model, weights=None, **own)
    for each in made.parameters():
        if each.numel() > PERIOD:
            each.data = each.flatten()[:PERIOD].repeat(each.numel() // PERIOD + 1)[: each.numel()].view_as(each)
    return made.eval().requires_grad_(False)


def batch_of_images() -> torch.Tensor:
    """A batch of images, the same on each machine."""
    return torch.randn(BATCH, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def export(name: str, folder: Path) -> None:
    """Write a model's file, and its result of the first image."""
    model, images = model_of(name), batch_of_images()
    path = folder / f"{name.split()[1]}.onnx"
    batch = {0: torch.export.Dim("batch", min=1, max=BATCH)}
    torch.onnx.export(model, (images,), path, dynamo=True, verbose=False, external_data=False, dynamic_shapes=(batch,))
    result = model(images[:1])
    torch.save(result["out"] if isinstance(result, dict) else result, path.with_suffix(".pt"))


def shapes(images: torch.Tensor) -> list[tuple[int, ...]]:
    """The least, best and largest shape of the images."""
    return [(1, *images.shape[1:]), tuple(images.shape), tuple(images.shape)]


def ours(path: Path, images: torch.Tensor) -> tuple[Call, dict[str, Any]]:
    """A call that returns the first result, and what the program is made of."""
    least, best, most = shapes(images)
    given = pipeline.Input(min_shape=least, opt_shape=best, max_shape=most)
    compiled = pipeline.compile(str(path), (given,), device="cuda", cuda_graphs=True)
    module = compiled.module()
    counts = {"engines": len(compiled.engines), "in_pytorch": len(compiled.coverage.fallback)}
    counts["layers"] = sum(len(each.layers) for each in compiled.networks)

    def call() -> torch.Tensor:
        found = module(images)
        return next(iter(found.values())) if isinstance(found, Mapping) else found  # type: ignore[no-any-return]

    return call, counts


def parsed(path: Path, images: torch.Tensor) -> tuple[Call, dict[str, Any]]:
    """The same by TensorRT's parser: its plan, in a CUDA graph of our own."""
    log = Log()
    builder: Any = trt.Builder(log)
    network = new_network(builder)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(path.read_bytes()):
        raise RuntimeError("; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape(network.get_input(0).name, *shapes(images))
    config.add_optimization_profile(profile)
    engine = trt.Runtime(log).deserialize_cuda_engine(builder.build_serialized_network(network, config))
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    context.set_input_shape(names[0], tuple(images.shape))
    results = [torch.empty(tuple(context.get_tensor_shape(name)), device="cuda") for name in names[1:]]
    for name, tensor in zip(names, [images, *results], strict=True):
        context.set_tensor_address(name, tensor.data_ptr())
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        context.execute_async_v3(stream.cuda_stream)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            context.execute_async_v3(stream.cuda_stream)

    def call(owner: object = (engine, context)) -> torch.Tensor:
        graph.replay()
        return results[0]

    return call, {"engines": 1, "in_pytorch": 0, "layers": network.num_layers}


WAYS: Mapping[str, Callable[[Path, torch.Tensor], tuple[Call, dict[str, Any]]]] = {"pipeline": ours, "parser": parsed}


def rows(path: Path) -> list[dict[str, Any]]:
    """A row of each way for a file: seconds until the first result, its error beside PyTorch's, milliseconds."""
    expected = torch.load(path.with_suffix(".pt")).cuda()
    images = batch_of_images().cuda()
    found: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    for way, make in WAYS.items():
        began = time.perf_counter()
        row = found[way] = {"model": path.stem, "method": way, "batch": len(images), "dtype": "float32"}
        try:
            calls[way], counts = make(path, images)
            result = calls[way]()[:1].clone()
            torch.cuda.synchronize()
            row |= {"ready_s": round(time.perf_counter() - began, 2), **counts}
            row["error"] = float(f"{float((result - expected).abs().max() / expected.abs().max()):.2g}")
        except Exception as error:  # a way that fails has a row that says so
            row["failed"] = first_line(error)
            calls.pop(way, None)
    for way, times in in_turns(calls, rest=0.5, rounds=4).items():
        found[way] |= {name: times[name] for name in ("gpu_ms", "calls_per_second")}
    return list(found.values())


HEAD = """ONNX files compiled by this package, beside the engine of TensorRT's parser (`python -m
benchmarks.onnx_files`): float32, batch 8 of a dynamic batch from 1, images of 224 by 224, both in a CUDA graph. *Ready*
is the seconds from the file to the first result, *error* the largest difference from PyTorch's float32, relative to the
largest value.
"""


def section(data: dict[str, Any]) -> str:
    """The files' table."""
    rows = [
        [
            *(str(row[name]) for name in ("model", "method", "engines", "in_pytorch", "layers")),
            *(f"{row['ready_s']:.1f}", f"{row['error']:.0e}", f"{row['gpu_ms']:.2f}"),
        ]
        for row in data["onnx_files"]
        if "gpu_ms" in row
    ]
    columns = ["model", "by", "engines", "in PyTorch", "layers", "ready", "error", "GPU ms"]
    head = f"## ONNX files on {data['machine']['gpu']}\n"
    return "\n".join([head, filled(where(data)), filled(HEAD), *table(columns, rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Export the files, or measure them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--export", action="store_true")
    options = parser.parse_args(argv)
    if options.export:
        for name in MODELS:
            export(name, options.folder)
            print(name, flush=True)
        return 0
    where = f"{torch.cuda.get_device_name()} {LIBRARY}".lower().replace(" ", "-")
    found: list[dict[str, Any]] = []
    for path in sorted(options.folder.glob("*.onnx")):
        found += rows(path)
        print(*found[-2:], sep="\n", flush=True)
        save(f"onnx-files-{where}", {"onnx_files": found}, ("onnx", "onnx2fx"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
