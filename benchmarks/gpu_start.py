"""``python -m benchmarks.gpu_start``: how soon a compiled program gives its first result on this GPU.

Each model is compiled in a process of its own, measured from the module on the GPU to the first result, and saved. Then
another process, whose cache is empty, loads the file, measured to the first result: ``benchmarks.kept_start``. In
float16 at batch 1: ViT-L on an image of 224 by 224, and the first token of Llama 8B after a prompt of 128.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import pipeline
from benchmarks.environment import collect
from benchmarks.gpu import gpu_name
from benchmarks.kept_start import result_of
from benchmarks.token_models import DEVICE, model_of
from pipeline.compat.transformers import compile_for_generation

VIT_L = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
POSITIONS, PROMPT, WORDS = 1024, 128, 30000
Inputs = dict[str, torch.Tensor]


def vit(**fields: Any) -> tuple[Inputs, Callable[[Inputs], Any]]:
    """Inputs, and what compiles the model for them."""
    with torch.device(DEVICE):
        model = hf.ViTForImageClassification(hf.ViTConfig(**{**VIT_L, **fields})).half().eval()
        inputs = {"pixel_values": torch.randn(1, 3, model.config.image_size, model.config.image_size).half()}
    return inputs, lambda given: pipeline.default()(model, (), given)


def llama(size: str = "8B") -> tuple[Inputs, Callable[[Inputs], Any]]:
    """Inputs, and what compiles the model for generation."""
    model = model_of(size, torch.float16, POSITIONS)
    inputs = {"input_ids": torch.randint(3, WORDS, (1, PROMPT), device=DEVICE)}
    return inputs, lambda given: compile_for_generation(model, max_cache_len=POSITIONS, max_prompt_len=PROMPT)


MODELS: Mapping[str, Callable[[], tuple[Inputs, Callable[[Inputs], Any]]]] = {"vit-large": vit, "llama-8b": llama}


def first(model: str, folder: str) -> dict[str, float]:
    """Compile a model, run it, and save it into a folder, with the kernels that this compiled."""
    with torch.no_grad():
        inputs, compile = MODELS[model]()
        torch.save({name: value.cpu() for name, value in inputs.items()}, f"{folder}/inputs.pt")
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled = compile(inputs)
        result = result_of(compiled, inputs)
        torch.cuda.synchronize()
        end = time.perf_counter()
        torch.save([value.cpu() for value in result], f"{folder}/result.pt")
        compiled.save(f"{folder}/model.trtp")
        return {"model_seconds": end - start, "save_seconds": time.perf_counter() - end}


def kept(model: str, folder: Path, found: dict[str, float]) -> dict[str, Any]:
    """A model's row, with the start from its file in another process."""
    libraries = ["transformers.models.llama.modeling_llama"] if model.startswith("llama") else []
    row = {"model": model, **found, **_apart("kept_start", folder, str(folder), *libraries)}
    return {**row, "file_mb": round((folder / "model.trtp").stat().st_size / 1e6)}


def _apart(module: str, folder: Path, *arguments: str) -> dict[str, float]:
    """What a process prints whose cache is an empty folder there."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    cache = tempfile.mkdtemp(dir=folder)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "PIPELINE_CACHE": cache}
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: round(seconds, 3) for name, seconds in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, saves and prints; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description="the first result of a module, and of its file in another process")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--processes", type=int, default=1, help="so many models are compiled side by side")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.gpu_start: there is no GPU here", file=sys.stderr)
        return 2
    if options.child:
        print(json.dumps(first(*options.child)))
        return 0
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.processes) as pool:
        folders = {model: Path(place, model) for model in options.models}

        def made(model: str) -> dict[str, float]:
            folders[model].mkdir()
            return _apart("gpu_start", folders[model], "--child", model, str(folders[model]))

        found = [*pool.map(made, options.models)]
        rows = ([kept(*each)] for each in zip(folders, folders.values(), found, strict=True))
        side_by_side = {"dtype": "float16", "batch": 1, "side_by_side": options.processes}
        collect(f"gpu-start-{gpu_name()}", "starts", rows, of=("model",), add=True, **side_by_side)
    return 0


if __name__ == "__main__":
    sys.exit(main())
