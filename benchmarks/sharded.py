"""``torchrun --nproc-per-node 2 -m benchmarks.sharded``: a language model over several GPUs, beside torch.compile and
one GPU.

Llamas with random weights and transformers' plan for tensor parallelism. Each row is one model, batch and method: the
milliseconds of a token at the end of the cache and of a prompt, the milliseconds that kernels of NCCL take of a token,
the share of what copies move that the weights of a rank are, and how many greedy tokens are those of one GPU. A row is
written when it is known. In float16, rounding changes tokens of random weights: eager's rows say how many. With
``--dtype float32``, and NVIDIA_TF32_OVERRIDE=0, all are equal.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import StaticCache, StaticLayer

from benchmarks.environment import RESULTS, environment
from benchmarks.token_models import bytes_read
from pipeline.cli.usage import first_line
from pipeline.compat.transformers import compile_for_generation

Row: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[int], torch.Tensor]
"""Run so many tokens of each row, the last of the cache; return the logits."""

EIGHT: Final = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
MODELS: Final[Mapping[str, Mapping[str, int]]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256, **EIGHT},
    "24B": {"hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "vocab_size": 131072, **EIGHT},
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}
GRAPHS, PLAIN, EAGER = "pipeline + graph", "pipeline", "eager"
COMPILED, REDUCED, ALONE = "torch.compile", "torch.compile, reduce-overhead", "pipeline + graph, one GPU"
INSIDE = [f"{each}, collectives in engines" for each in (GRAPHS, PLAIN)]
MEASURED = f"{GRAPHS}, measured forms"
METHODS: Final = (GRAPHS, MEASURED, PLAIN, *INSIDE, EAGER, COMPILED, REDUCED, ALONE)
NEW, COPIED = 32, 1 << 30
"""The greedy tokens that are compared, and the bytes of a copy."""


def cuda() -> bool:
    """Whether there are GPUs."""
    return torch.cuda.is_available()


def device() -> torch.device:
    """This rank's device."""
    return torch.device("cuda", torch.cuda.current_device()) if cuda() else torch.device("cpu")


def say(*what: object) -> None:
    """Print at the first rank."""
    if dist.get_rank() == 0:
        print(f"{time.strftime('%H:%M:%S')}", *what, flush=True)


@contextmanager
def joined(timeout: float) -> Iterator[None]:
    """A context with a process group, as torchrun's environment describes it."""
    if cuda():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda() else "gloo", timeout=timedelta(seconds=timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def model_of(name: str, layers: int | None, positions: int, *, sharded: bool, dtype: str | None = None) -> Any:
    """A Llama of this name; on all ranks with the same weights before it is sharded."""
    fields = {**MODELS[name], **({"num_hidden_layers": layers} if layers else {})}
    config = LlamaConfig(**fields, max_position_embeddings=positions, pad_token_id=0, eos_token_id=None)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype or ("float16" if cuda() else "float32")))
    try:
        with device():
            model = LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    return by_plan(model) if sharded else model


def by_plan(model: Any) -> Any:
    """The model, sharded over all ranks by its plan."""
    from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, replace_layer_number_by_wildcard

    mesh, plan = init_device_mesh("cuda" if cuda() else "cpu", (dist.get_world_size(),)), model.tp_plan
    for name, module in list(model.named_modules()):
        style = plan.get(replace_layer_number_by_wildcard(name))
        if style is not None:
            for parameter in list(module._parameters):
                ALL_PARALLEL_STYLES[style].shard_param(module, parameter, mesh)
                local: Any = module._parameters[parameter]
                if hasattr(local, "to_local"):  # a view, which keeps the whole parameter
                    local._local_tensor = local._local_tensor.clone()
            ALL_PARALLEL_STYLES[style].install_forward(module, mesh)
    return model


def inputs(batch: int, positions: int, tokens: int) -> dict[str, torch.Tensor]:
    """Inputs of the decoder's program: so many tokens at the end of the cache."""
    with device():
        return {
            "input_ids": torch.arange(tokens).expand(batch, tokens).contiguous() % 100,
            "attention_mask": torch.ones(batch, positions, dtype=torch.bool),
            "position_ids": torch.arange(positions - tokens, positions).expand(batch, tokens).contiguous(),
            "start": torch.tensor(positions - tokens),
        }


def ours(model: Any, batch: int, positions: int, prompt: int, method: str) -> tuple[Any, Step]:
    """The compiled model, and its step."""
    how: dict[str, Any] = {"cuda_graphs": "graph" in method, "collectives_in_engine": method in INSIDE}
    if method == MEASURED:
        how["measurements"] = f"{tempfile.gettempdir()}/sharded-measured-{dist.get_rank()}.json"
    sizes = {"max_cache_len": positions, "max_batch": batch, "max_prompt_len": prompt}
    made = compile_for_generation(model, **sizes, executor="tensorrt" if cuda() else "reference", **how)
    return made, step_of(made.runners["decoder"], batch, positions)


def step_of(decoder: Any, batch: int, positions: int) -> Step:
    """A step of the decoder's program."""
    given: dict[int, dict[str, torch.Tensor]] = {}

    def step(tokens: int) -> torch.Tensor:
        if tokens not in given:
            given[tokens] = inputs(batch, positions, tokens)
        return decoder(**given[tokens])  # type: ignore[no-any-return]

    return step


def theirs(model: Any, batch: int, positions: int, mode: str | None) -> Step:
    """A step of transformers' model with its static cache, compiled by torch if there is a mode."""
    cache = StaticCache(config=model.config, max_cache_len=positions)
    called = torch.compile(model, mode=mode) if mode else model
    given: dict[int, dict[str, torch.Tensor]] = {}
    with torch.no_grad():  # which makes the cache
        model(inputs(batch, positions, 1)["input_ids"], past_key_values=cache, use_cache=True)

    @torch.no_grad()
    def step(tokens: int) -> torch.Tensor:
        if tokens not in given:
            given[tokens] = inputs(batch, positions, tokens)
        for layer in cache.layers:
            if isinstance(layer, StaticLayer) and hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(positions - tokens)
        own = {name: given[tokens][name] for name in ("input_ids", "position_ids")}
        return called(**own, past_key_values=cache, use_cache=True, logits_to_keep=1).logits  # type: ignore[no-any-return]

    return step


def milliseconds(call: Callable[[], object], count: int, *, together: bool = True) -> float:
    """The median of so many calls on the slowest rank; all ranks call equally often."""
    for _ in range(5 if cuda() else 1):
        call()
    if together:
        dist.barrier()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        if cuda():
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end))
        else:
            call()
            taken.append(1e3 * (time.perf_counter() - began))
    found = torch.tensor(sorted(taken)[count // 2], dtype=torch.float64, device=device())
    if together:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return round(float(found), 4)


def in_collectives(call: Callable[[], object], count: int = 5) -> float | None:
    """Milliseconds of a call in kernels of NCCL, by torch.profiler; None without a GPU."""
    if not cuda():
        call()
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    nccl = [each for each in profile.events() if "nccl" in each.name.lower() and "Kernel" in each.name]
    return round(sum(each.device_time_total for each in nccl) / 1e3 / count, 4)


def copy_rate() -> float:
    """Bytes a second that a copy reads and writes on this device."""
    size = COPIED if cuda() else COPIED >> 6
    source, target = (torch.empty(size, dtype=torch.uint8, device=device()) for _ in range(2))
    return 2e3 * size / milliseconds(lambda: target.copy_(source), 10, together=False)


def local_bytes(model: Any) -> int:
    """The bytes of weights that a token reads on this rank."""
    if not any(hasattr(each, "to_local") for each in model.parameters()):
        return bytes_read(model)
    table = model.get_input_embeddings().weight
    every = (each.to_local() if hasattr(each, "to_local") else each for each in model.parameters() if each is not table)
    return sum(each.nbytes for each in every)


def greedy(model: Any, batch: int, prompt: int) -> tuple[list[list[int]], torch.Tensor]:
    """The greedy tokens after a short prompt, and the logits of the first one."""
    torch.manual_seed(1)
    ids = torch.randint(0, 100, (batch, min(prompt, 16))).to(device())
    new = min(NEW, prompt - 16) if prompt > 16 else 4
    how = {"max_new_tokens": new, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    return found.sequences[:, ids.shape[1] :].tolist(), found.logits[0].double()


def same(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> str:
    """How many tokens of each row are equal up to the first other one, of all."""
    equal = 0
    for a, b in zip(left, right, strict=True):
        equal += next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return f"{equal} of {sum(map(len, left))}"


def compared(model: Any, batch: int, prompt: int, whole: tuple[list[list[int]], torch.Tensor]) -> Row:
    """How many greedy tokens are those of eager PyTorch on one GPU, and the difference of the first logits, relative to
    the largest."""
    tokens, logits = greedy(model, batch, prompt)
    off = float((logits - whole[1]).abs().max() / whole[1].abs().max())
    return {"tokens_as_one_gpu": same(tokens, whole[0]), "logits_off": float(f"{off:.2g}")}


def measured(step: Step, prompt: int, weights: int, rate: float, *, together: bool = True) -> Row:
    """The times of a token and a prompt."""
    few = 20 if cuda() else 2
    token = milliseconds(lambda: step(1), 5 * few, together=together)
    return {
        "token_ms": token,
        "token_nccl_ms": in_collectives(lambda: step(1)) if together else None,
        "prompt_ms": milliseconds(lambda: step(prompt), few // 2, together=together),
        "weights_mb": round(weights / 1e6),
        "share_of_copies": round(weights / (1e-3 * token) / rate, 3),
    }


def row_of(method: str, models: Mapping[str, Any], batch: int, options: Any, rate: float) -> Row:
    """Measure a method."""
    positions, prompt = options.prompt + 64, options.prompt
    began, alone = time.perf_counter(), method == ALONE
    if alone and dist.get_rank() > 0:
        return {}
    model = models["whole" if alone else "sharded"]
    made = model
    if method.startswith(PLAIN):
        made, step = ours(model, batch, positions, prompt, method)
    else:
        modes = {COMPILED: "default", REDUCED: "reduce-overhead"}
        step = theirs(model, batch, positions, modes.get(method))
    step(1), step(prompt)  # both are compiled, and have run
    row: Row = {"ready_s": round(time.perf_counter() - began, 1)}
    row |= measured(step, prompt, local_bytes(model), rate, together=not alone)
    row["engines"] = len(made.compiled["decoder"].engines) if made is not model else None
    return row if method in (COMPILED, REDUCED) else row | compared(made, batch, prompt, models["greedy"][batch])


def rows(options: Any) -> Iterator[Row]:
    """The rows that the options ask for, until the time is up."""
    ends, rate = time.perf_counter() + options.seconds, copy_rate()
    for name in options.models:
        made = partial(model_of, name, options.layers, 2 * options.prompt, dtype=options.dtype)
        models: dict[str, Any] = {"whole": made(sharded=False)}
        models["greedy"] = {batch: greedy(models["whole"], batch, options.prompt) for batch in options.batches}
        if ALONE not in options.methods or dist.get_rank() > 0:
            del models["whole"]
        if {*options.methods} - {ALONE}:
            models["sharded"] = made(sharded=True)
        for batch in options.batches:
            for method in options.methods:
                left = torch.tensor(ends - time.perf_counter(), device=device())
                dist.broadcast(left, 0)
                subject: Row = {"model": name, "layers": options.layers, "batch": batch, "prompt": options.prompt}
                subject |= {"method": method, "dtype": options.dtype}
                subject |= {"ranks": dist.get_world_size(), "copy_gb_s": round(rate / 1e9)}
                if float(left) <= 0:
                    yield {**subject, "error": "the time is up"}
                    continue
                say(name, batch, method)
                try:
                    yield {**subject, **row_of(method, models, batch, options, rate)}
                except Exception as error:  # a method that fails has a row that says so
                    yield {**subject, "error": first_line(error)[:300]}
                torch._dynamo.reset()
                gc.collect()
                if cuda():
                    torch.cuda.empty_cache()
                dist.barrier()


def measure(options: Any, found: Callable[[Any], Iterator[Row]] = rows) -> int:
    """Write the rows to the results, each when it is there."""
    with joined(options.timeout):
        for row in found(options):
            if dist.get_rank() == 0:
                print(json.dumps(row), flush=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**row, "at": environment()}) + "\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or test for hangs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["8B", "24B"], choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=1200, help="for all; a row that has begun is finished")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a collective")
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16" if cuda() else "float32")
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers, for CPUs")
    parser.add_argument("--out", type=Path, default=RESULTS / "sharded.jsonl")
    options = parser.parse_args(argv)
    if options.tiny:
        options.models, options.prompt = ["tiny"], min(options.prompt, 24)
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
