"""``python -m benchmarks.tokens``: a token's milliseconds on this GPU, beside transformers' compiled static cache.

Llama-like models with random weights. A step decodes one token for each row at the end of the cache. The weights
that it reads, divided by its time, are compared with what a copy on this GPU moves in the same run.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import pipeline
from benchmarks.environment import collect
from benchmarks.gpu import gpu_name
from benchmarks.turns import in_turns
from pipeline.aten.traits import Does, does
from pipeline.cli.sources import first_line
from pipeline.compat.transformers import compile_for_generation
from pipeline.profiling.records import Profile

SIZES = {
    "1.1B": {"hidden_size": 2048, "num_hidden_layers": 22, "intermediate_size": 5632},
    "3B": {"hidden_size": 3072, "num_hidden_layers": 28, "intermediate_size": 8192},
}
LENGTHS = (128, 1024, 4096, 16384)
COPIED = 1 << 30
PRODUCTS = (Does.PROJECTS, Does.MULTIPLIES)
Call = Callable[[], object]


def model_of(size: str, dtype: torch.dtype, positions: int) -> Any:
    """A Llama-like decoder: 32 heads, or 24 of the same width, with 4 heads of keys and values."""
    heads = 32 if size == "1.1B" else 24
    shape = {"num_attention_heads": heads, "num_key_value_heads": 4, "vocab_size": 32000, "pad_token_id": 0}
    config = LlamaConfig(**SIZES[size], **shape, max_position_embeddings=positions)
    with torch.device("cuda"):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).to(dtype).eval()


def step_inputs(batch: int, positions: int) -> dict[str, torch.Tensor]:
    """Inputs of a step that writes the last position of the cache."""
    return {
        "input_ids": torch.ones(batch, 1, dtype=torch.int64, device="cuda"),
        "attention_mask": torch.ones(batch, positions, dtype=torch.bool, device="cuda"),
        "position_ids": torch.full((batch, 1), positions - 1, device="cuda"),
        "start": torch.tensor(positions - 1, device="cuda"),
    }


def compiled(model: Any, batch: int, positions: int) -> Any:
    """The model, compiled for generation."""
    sizes = {"max_cache_len": positions, "max_batch": batch, "max_prompt_len": min(positions, 512)}
    return compile_for_generation(model, **sizes, executor="tensorrt", cuda_graphs=True)


def ours(model: Any, batch: int, positions: int) -> tuple[Call, dict[str, float]]:
    """A step of the compiled decoder, the seconds until it was ready, the export included, and its memory."""
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    made = compiled(model, batch, positions)
    ready, stages = time.perf_counter() - began, sum(entry.seconds for entry in made.compiled["decoder"].took)
    decoder, given = made.runners["decoder"], step_inputs(batch, positions)
    for _ in range(3):
        decoder(**given)
    torch.cuda.synchronize()
    facts = {"ready_s": round(ready, 1), "stages_s": round(stages, 1)}
    facts |= {"memory_mb": round((torch.cuda.memory_allocated() - before) / 1e6)}
    return lambda: decoder(**given), facts


def kernels_of_a_step(model: Any, batch: int, positions: int) -> list[dict[str, Any]]:
    """Where a step without CUDA graphs spends its time: kernels by module, layers together, and their weights."""
    program = compiled(model, batch, positions).compiled["decoder"]
    return by_module(program, program.profile(**step_inputs(batch, positions)))


def by_module(program: pipeline.Compiled, profile: Profile) -> list[dict[str, Any]]:
    """A row for each module: its kernels, their microseconds, and the megabytes of weights that they read."""
    modules = {node.node: re.sub(r"\.\d+", "", node.module) for node in profile.nodes}
    nodes = {node.name: node for node in program.program.graph.nodes}
    rows: dict[str, dict[str, Any]] = {}
    for layer in (layer for segment in profile.segments for layer in segment.layers):
        products = [nodes[n] for n in layer.nodes if n in nodes and does(nodes[n].target) in PRODUCTS]
        named = [n.name for n in products] or list(layer.nodes)
        name = modules.get(named[0], "") if named else "TensorRT's own"
        row = rows.setdefault(name, {"kernels": 0, "us": 0.0, "mb": 0.0})
        read = {x for n in products for x in n.all_input_nodes if x.name in program.program.constants}
        row["kernels"] += 1
        row["us"] += 1e3 * layer.milliseconds
        row["mb"] += sum(x.meta["val"].nbytes for x in read) / 1e6
    return [{"module": name, **{k: round(v, 1) for k, v in row.items()}} for name, row in rows.items()]


def theirs(model: Any, batch: int, positions: int, mode: str | None) -> Call:
    """A step of transformers' model with its static cache, compiled by torch if a mode is given."""
    cache = StaticCache(config=model.config, max_cache_len=positions)
    width = model.config.head_dim
    cache.early_initialization(batch, model.config.num_key_value_heads, width, model.dtype, model.device)
    ids = torch.ones(batch, 1, dtype=torch.int64, device="cuda")
    places = torch.full((batch, 1), positions - 1, device="cuda")
    step = torch.compile(model, mode=mode, fullgraph=False) if mode else model

    def call() -> object:
        for layer in cache.layers:
            layer.cumulative_length.fill_(positions - 1)
        return step(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True).logits

    return torch.no_grad()(call)


def bandwidth() -> float:
    """Bytes a second that a copy of 1 GiB reads and writes."""
    source, target = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    taken = in_turns({"copy": lambda: target.copy_(source)})["copy"]["gpu_ms"]
    return 2e3 * COPIED / taken


def rows(size: str, name: str, batch: int, positions: int, reached: float) -> Iterator[dict[str, Any]]:
    """A row for each method, or why it has none."""
    subject = {"model": size, "dtype": name, "batch": batch, "positions": positions}
    model = model_of(size, getattr(torch, name), positions)
    weights = sum(p.nbytes for p in model.parameters()) - model.model.embed_tokens.weight.nbytes
    calls: dict[str, Call] = {}
    facts: dict[str, dict[str, Any]] = {}
    for method, make in (
        ("pipeline + graph", lambda: ours(model, batch, positions)),
        ("static cache, reduce-overhead", lambda: (theirs(model, batch, positions, "reduce-overhead"), {})),
        ("static cache, eager", lambda: (theirs(model, batch, positions, None), {})),
    ):
        try:
            calls[method], facts[method] = make()
            calls[method]()
        except Exception as error:  # a method that fails has a row that says so
            calls.pop(method, None)
            yield {**subject, "method": method, "error": first_line(error)}
    for method, found in in_turns(calls).items():
        share = weights / (1e-3 * found["gpu_ms"]) / reached
        read = {"weights_mb": round(weights / 1e6), "bandwidth": round(share, 3)}
        yield {**subject, "method": method, **found, **read, **facts[method]}


def main() -> None:
    """Measure what the options ask for, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--dtypes", nargs="*", default=["float16", "bfloat16"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--positions", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--kernels", action="store_true", help="the kernels of a step by module, instead of times")
    parser.add_argument("--add", action="store_true", help="keep the rows of an earlier run")
    options = parser.parse_args()
    subjects = list(itertools.product(options.models, options.dtypes, options.batches, options.positions))
    fields = ("model", "dtype", "batch", "positions")

    def parts(of: Callable[[str, str, int, int], Iterable[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
        for subject in subjects:
            yield list(of(*subject))
            gc.collect()
            torch.cuda.empty_cache()

    def step(size: str, name: str, batch: int, positions: int) -> Iterator[dict[str, Any]]:
        found = kernels_of_a_step(model_of(size, getattr(torch, name), positions), batch, positions)
        yield {**dict(zip(fields, (size, name, batch, positions), strict=True)), "step": found}

    if options.kernels:
        collect(f"steps-{gpu_name()}", "steps", parts(step), of=fields, add=options.add)
        return
    reached = bandwidth()
    times = parts(partial(rows, reached=reached))
    collect(f"tokens-{gpu_name()}", "tokens", times, of=fields, add=options.add, copy_gb_s=round(reached / 1e9))


if __name__ == "__main__":
    main()
