"""``python -m benchmarks.tokens``: a token's milliseconds on this GPU, beside transformers' compiled static cache.

Models like Llama, or with recurrent states, with random weights. A step decodes one token for each row at the end of
the cache, or a prompt of ``--tokens``, and returns the last logits. The weights that it reads, divided by its time, are
compared with what a copy on this GPU moves in the same run. With ``--together`` several configurations get ready side
by side, each in a process of its own, and are measured one after the other. ``--ready`` measures how soon ours gives
its first token, alone on the machine. With ``--pieces`` ours is so many engines, which as many processes build side by
side.
"""

from __future__ import annotations

import argparse
import itertools
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, TypeAlias

import torch
from transformers.cache_utils import StaticCache, StaticLayer

import pipeline
from benchmarks import together
from benchmarks.environment import Row, collect
from benchmarks.gpu import HostMemory, gpu_name, warm_up
from benchmarks.real_row import Turns, of_this_gpu
from benchmarks.token_models import DEVICE, SIZES, WITH_STATES, bytes_read, model_of
from benchmarks.turns import in_turns
from pipeline.aten.traits import Kind, op_kind
from pipeline.cli.usage import first_line
from pipeline.compat.transformers import compile_for_generation
from pipeline.compat.transformers.caches import cache_argument, has_parameter
from pipeline.compose.events import Event
from pipeline.records.profile import Profile
from pipeline.stages import choose
from pipeline.stages.choose import Choose

LENGTHS = (128, 1024, 4096, 16384)
COPIED = 1 << 30
EXECUTOR: Final = "tensorrt"
PRODUCTS = (Kind.PROJECTS, Kind.MULTIPLIES)
FIELDS: tuple[str, ...] = ("model", "dtype", "batch", "positions")
PROMPTS = 512
"""Tokens of the longest prompt, if no longer one is measured."""
REPLAYED = 4
"""Calls until what is captured in a graph is replayed."""
LONG = 0.004
"""The seconds from which a step is called less often."""
Call: TypeAlias = Callable[[], object]
Calls: TypeAlias = Mapping[int, Call]
"""Steps by their numbers of tokens."""


def step_inputs(batch: int, positions: int, tokens: int = 1) -> dict[str, torch.Tensor]:
    """Inputs of a step that writes the last positions of the cache."""
    with torch.device(DEVICE):
        return {
            "input_ids": torch.ones(batch, tokens, dtype=torch.int64),
            "attention_mask": torch.ones(batch, positions, dtype=torch.bool),
            "position_ids": torch.arange(positions - tokens, positions).expand(batch, tokens).contiguous(),
            "start": torch.tensor(positions - tokens),
        }


def alone() -> AbstractContextManager[None]:
    """A context in which no other process of this benchmark measures forms on the GPU."""
    return Turns(of_this_gpu()).held(alone=True)


def compiled(
    model: Any,
    batch: int,
    positions: int,
    *observers: Callable[[Event], object],
    pieces: int = 1,
    shared: bool = True,
    fixed: Sequence[int] = (),
    prompt: int = PROMPTS,
    **settings: Any,
) -> Any:
    """The model, compiled for generation, for prompts of so many tokens, with engines of fixed sizes for those of
    ``fixed`` lengths; forms are measured when it is this process's turn. Processes for pieces, of which each profile
    has an engine if weights are ``shared``, import what they need while the model is exported."""
    sizes = {"max_cache_len": positions, "max_batch": batch, "max_prompt_len": min(positions, prompt)}
    sizes |= {"prompt_lens": fixed}
    count = (2 + len(fixed)) * pieces if shared else pieces
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as processes:
        for _ in range(count if pieces > 1 else 0):
            processes.submit(pipeline.CompilationSettings)
        compile = pipeline.default(cuda_graphs=True, build_executor=processes if pieces > 1 else None, **settings)
        compile = compile.replace("partition", pipeline.in_pieces(pieces)) if pieces > 1 else compile
        timer = partial(choose.measure_segments, measuring_context=alone)
        compile = compile.replace("choose", Choose(timer)).observed_by(*observers)
        return compile_for_generation(model, **sizes, compile=compile, executor=EXECUTOR, shared_weights=shared)


def ours(model: Any, batch: int, positions: int, lengths: Sequence[int], fixed: bool = False, **how: Any) -> Calls:
    """Steps of the compiled decoder, which may have engines for just so many tokens."""
    lens = [length for length in lengths if length > 1] if fixed else []
    decoder = compiled(model, batch, positions, fixed=lens, prompt=max(PROMPTS, *lengths), **how).runners["decoder"]
    given = {length: step_inputs(batch, positions, length) for length in lengths}
    return {length: partial(decoder, **inputs) for length, inputs in given.items()}


def first_token(model: Any, batch: int, positions: int, pieces: int) -> Row:
    """How soon a step's first result is there, with no kernels kept on disk: seconds in all, those of the export and of
    each stage, megabytes that the host needs at most meanwhile, and that the GPU holds afterwards beside the model."""
    started: list[float] = []
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, memory, began = torch.cuda.mem_get_info()[0], HostMemory(), time.perf_counter()
    began_at: Callable[[Event], object] = lambda _: started.append(time.perf_counter())  # noqa: E731  # an observer
    made = compiled(model, batch, positions, began_at, pieces=pieces, runtime_cache=False)
    run = time.perf_counter()
    made.runners["decoder"](**step_inputs(batch, positions))
    torch.cuda.synchronize()
    ready, export = time.perf_counter() - began, started[0] - began
    stages = {entry.stage: round(entry.seconds, 2) for entry in made.compiled["decoder"].took}
    taken = {"ready_s": round(ready, 1), "export_s": round(export, 1), "stages_s": stages}
    taken |= {"first_call_s": round(time.perf_counter() - run, 1), "host_peak_mb": memory.peak_mb()}
    torch.cuda.empty_cache()
    return {**taken, "device_mb": round((free - torch.cuda.mem_get_info()[0]) / 1e6)}


def by_module(program: pipeline.Compiled, profile: Profile) -> list[dict[str, Any]]:
    """A row for each module: its kernels, their microseconds, and the megabytes of weights that they read."""
    modules = {node.node: re.sub(r"\.\d+", "", node.module) for node in profile.nodes}
    nodes = {node.name: node for node in program.program.graph.nodes}
    rows: dict[str, dict[str, Any]] = {}
    for layer in (layer for segment in profile.segments for layer in segment.layers):
        products = [nodes[n] for n in layer.nodes if n in nodes and op_kind(nodes[n].target) in PRODUCTS]
        named = [n.name for n in products] or list(layer.nodes)
        name = modules.get(named[0], "") if named else "TensorRT's own"
        row = rows.setdefault(name, {"kernels": 0, "us": 0.0, "mb": 0.0})
        read = {x for n in products for x in n.all_input_nodes if x.name in program.program.constants}
        row["kernels"] += 1
        row["us"] += 1e3 * layer.milliseconds
        row["mb"] += sum(x.meta["val"].nbytes for x in read) / 1e6
    return [{"module": name, **{k: round(v, 1) for k, v in row.items()}} for name, row in rows.items()]


def theirs(model: Any, batch: int, positions: int, lengths: Sequence[int], mode: str | None = None) -> Calls:
    """Steps of transformers' model with its static cache, compiled by torch if a mode is given."""
    return {length: _theirs(model, batch, positions, length, mode) for length in lengths}


def _theirs(model: Any, batch: int, positions: int, tokens: int, mode: str | None) -> Call:
    cache = StaticCache(config=model.config, max_cache_len=positions)
    given = step_inputs(batch, positions, tokens)
    how = {"input_ids": given["input_ids"], cache_argument(model): cache, "use_cache": True}
    how |= {"position_ids": given["position_ids"]} if has_parameter(model, "position_ids") else {}
    how |= {"logits_to_keep": 1} if has_parameter(model, "logits_to_keep") else {}
    step = torch.compile(model, mode=mode, dynamic=False) if mode else model
    with torch.no_grad():
        model(**how)  # which makes the cache

    def call() -> object:
        for layer in cache.layers:
            if isinstance(layer, StaticLayer):
                layer.cumulative_length.fill_(positions - tokens)
        return step(**how).logits

    return torch.no_grad()(call)


def bandwidth() -> float:
    """Bytes a second that a copy of 1 GiB reads and writes."""
    source, target = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    taken = in_turns({"copy": lambda: target.copy_(source)})["copy"]["gpu_ms"]
    return 2e3 * COPIED / taken


OURS = "pipeline + graph"
FIXED = "pipeline + graph, prompt_lens"
METHODS: dict[str, Callable[..., Calls]] = {
    OURS: ours,
    FIXED: partial(ours, fixed=True),
    "pipeline + graph, weights inside": partial(ours, shared=False),
    "static cache, reduce-overhead": partial(theirs, mode="reduce-overhead"),
    "static cache, eager": partial(theirs, mode=None),
}
Rows: TypeAlias = Callable[[], list[Row]]


def _named(subject: together.Subject) -> Row:
    return dict(zip(FIELDS, subject, strict=True))


def times(methods: Sequence[str], reached: float, pieces: int, lengths: Sequence[int], *subject: Any) -> Rows:
    """Get steps of so many tokens ready by each method; a row for each, or why it has none."""
    size, name, batch, positions = subject
    model = model_of(size, getattr(torch, name), positions)
    weights = bytes_read(model)
    calls: dict[str, Calls] = {}
    failed: list[Row] = []
    for method in methods:
        try:
            make = partial(ours, pieces=pieces) if method == OURS else METHODS[method]
            made = make(model, batch, positions, lengths)
            for call in (*made.values(),) * REPLAYED:
                call()
            torch.cuda.synchronize()
        except Exception as error:  # a method that fails has a row that says so
            failed.append({**_named(subject), "method": method, "error": first_line(error)})
        else:
            calls[method] = made
        together.log(subject, f"{method}: {failed[-1]['error'] if method not in calls else 'ready'}")

    def rows(tokens: int) -> Iterator[Row]:
        for method, found in in_turns({m: made[tokens] for m, made in calls.items()}, **_counts(calls, tokens)).items():
            share = weights / (1e-3 * found["gpu_ms"]) / reached
            read = {"weights_mb": round(weights / 1e6), "bandwidth": round(share, 3)} if tokens == 1 else {}
            yield {**_named(subject), "method": method, "tokens": tokens, **found, **read}

    def measured() -> list[Row]:
        with alone():
            return [*(row for tokens in lengths for row in rows(tokens)), *failed]

    return measured


def _counts(calls: Mapping[str, Calls], tokens: int) -> dict[str, int]:
    """How often long steps are called in a turn: for a quarter of a second."""
    began = time.perf_counter()
    for made in calls.values():
        made[tokens]()
    torch.cuda.synchronize()
    longest = (time.perf_counter() - began) / max(1, len(calls))
    return {} if longest < LONG else {"rounds": 3, "warm_up": 2, "count": max(3, round(0.25 / longest))}


def step(tokens: int, *subject: Any) -> Rows:
    """Get a step ready whose kernels are told by module."""
    size, name, *sizes = subject
    program = compiled(model_of(size, getattr(torch, name), sizes[1]), *sizes).compiled["decoder"]
    profile = lambda: program.profile(**step_inputs(*sizes, tokens))  # noqa: E731  # measured when it is its turn
    return lambda: [{**_named(subject), "tokens": tokens, "step": by_module(program, profile())}]


def readiness(pieces: int, *subject: Any) -> Rows:
    """Compile a layer, so that the libraries are loaded; then measure how soon the model's first token is there."""
    size, name, *sizes = subject
    model = model_of(size, getattr(torch, name), sizes[1])
    warm_up(["pipeline"])
    return lambda: [{**_named(subject), **first_token(model, *sizes, pieces)}]


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["1.1B", "3B"], choices=[*SIZES, *WITH_STATES])
    parser.add_argument("--dtypes", nargs="*", default=["float16", "bfloat16"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--positions", nargs="*", type=int, default=list(LENGTHS))
    methods = f"all by default, for single tokens all but {FIXED}: they have engines of fixed sizes anyway"
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), help=methods)
    parser.add_argument("--together", type=int, default=1, help="so many configurations get ready side by side")
    parser.add_argument("--limit", type=float, default=600, help="seconds for those to get ready, and for one's turn")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--kernels", action="store_true", help="the kernels of a step by module, instead of times")
    instead.add_argument("--ready", action="store_true", help="how soon the first token is there, instead of times")
    parser.add_argument("--pieces", type=int, default=1, help="so many engines, built by as many processes")
    parser.add_argument("--tokens", nargs="*", type=int, default=[1], help="of steps: more than 1 are a prompt")
    parser.add_argument("--add", action="store_true", help="keep the rows of an earlier run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the options ask for, and write it down; 130 if that was ended, with what there was by then."""
    options = _options().parse_args(argv)
    options.methods = options.methods or [m for m in METHODS if m != FIXED or max(options.tokens) > 1]
    subjects = list(itertools.product(options.models, options.dtypes, options.batches, options.positions))
    prepare: together.Prepare = partial(readiness, options.pieces)
    pieces = Row({"pieces": options.pieces} if options.pieces > 1 else {})
    kind, of, each, more = "ready", FIELDS, [Row()], pieces
    if options.kernels:
        [tokens] = options.tokens
        kind, of, each = "steps", (*FIELDS, "tokens"), [Row({"tokens": tokens})]
        prepare = partial(step, tokens)
    elif not options.ready:
        kind, of, each = "tokens", (*FIELDS, "method", "tokens"), [{"method": method} for method in options.methods]
        reached = bandwidth()
        prepare = partial(times, options.methods, reached, options.pieces, options.tokens)
        more = {**pieces, "copy_gb_s": round(reached / 1e9)}
        torch.cuda.empty_cache()

    def parts() -> Iterator[Sequence[Row]]:
        beside = 1 if options.ready else options.together
        for subject, found in together.measured(subjects, prepare, beside, options.limit):
            failed = [{**_named(subject), **one, "error": found} for one in each]
            yield failed if isinstance(found, str) else found

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        collect(f"{kind}-{gpu_name()}", kind, parts(), of=of, add=options.add, **more)
    except KeyboardInterrupt:
        print("ended before all was measured", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
