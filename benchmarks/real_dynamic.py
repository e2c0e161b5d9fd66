"""``python -m benchmarks.real_dynamic --out FILE.jsonl``: what sizes that vary cost, beside static programs.

Ten models at the widths of real checkpoints, each compiled once for a range of batches, lengths or images, and once for
each of five sizes in it. At each size both programs are measured in turns, with CUDA graphs, and compared with float32.
Processes, turns and files are those of ``benchmarks.real``; ``benchmarks.real_tables`` makes a result of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch.export import Dim

from benchmarks import real_audio, real_decoders, real_diffusion, real_text, real_vision
from benchmarks.environment import environment
from benchmarks.real import Job, finished, run, shares
from benchmarks.real_models import Inputs, Row, defaults, of_transformers
from benchmarks.real_row import Outputs, Report, Turns, compiler, errors, measured, of_this_gpu, ratio, synchronize
from benchmarks.signals import Given, floats, ids
from pipeline.verification.eager import use_tf32

TURNS = 20
WORDS = 32000


@frozen
class Case:
    """A model, and five sizes of its inputs, which are multiples of a number. Inputs that differ between the sizes have
    the size itself as a dim."""

    name: str
    shapes: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[int], Mapping[str, Given]]
    sizes: tuple[int, int, int, int, int]
    of: str = "batch"
    multiple: int = 1
    library: str = "transformers"
    convolutions: bool = False
    heavy: int = 1

    @property
    def row(self) -> Row:
        """The model with inputs of the middle size, which is the one that engines are optimized for."""
        given = self.inputs(self.sizes[2])
        return Row(self.name, self.shapes, self.make, given, self.library, self.convolutions, heavy=self.heavy)

    def tensors(self, size: int, device: str, dtype: torch.dtype) -> Inputs:
        """Inputs of a size."""
        with torch.random.fork_rng(), defaults(device, dtype):
            torch.manual_seed(size)
            return {name: given.tensor() for name, given in self.inputs(size).items()}

    def dynamic_shapes(self) -> dict[str, dict[int, Any]]:
        """torch.export's dims: one for all that vary."""
        least, most = self.sizes[0], self.sizes[-1]
        size = Dim("size", min=least // self.multiple, max=most // self.multiple)
        size = self.multiple * size if self.multiple > 1 else size
        pairs = zip(self.inputs(least).items(), self.inputs(most).values(), strict=True)
        return {
            name: {i: size for i, (a, b) in enumerate(zip(first.dims, last.dims, strict=True)) if a != b}
            for (name, first), last in pairs
        }


def _layers(model: str, config: str, fields: Mapping[str, Any], **fewer: Any) -> Callable[[], torch.nn.Module]:
    return of_transformers(model, config, **{**fields, **fewer})


def _image(batch: int, size: int) -> dict[str, Given]:
    return {"pixel_values": floats(batch, 3, size, size)}


SEGFORMER = _layers(
    "SegformerForSemanticSegmentation", "SegformerConfig", real_vision.SEGFORMER_B5, depths=[2, 2, 4, 2]
)
CASES = (
    Case(
        "llama-8b-prompt",
        f"2 of 32 layers, 4,096 wide, {WORDS:,} words; batch 1",
        _layers(
            "LlamaModel", "LlamaConfig", real_decoders.LLAMA_8B, num_hidden_layers=2, vocab_size=WORDS, use_cache=False
        ),
        lambda size: {"input_ids": ids(WORDS, 1, size)},
        (128, 256, 512, 1024, 2048),
        "tokens",
        heavy=3,
    ),
    Case(
        "t5-xxl-encoder",
        "2 of 24 layers, 4,096 wide; batch 2",
        _layers("T5EncoderModel", "T5Config", real_text.T5_XXL, num_layers=2),
        lambda size: real_text.text(size, 2, WORDS),
        (64, 128, 256, 384, 512),
        "tokens",
        heavy=3,
    ),
    Case(
        "segformer-b5",
        "10 of 52 layers, widths 64 to 512; batch 1",
        SEGFORMER,
        lambda size: _image(1, size),
        (256, 384, 512, 768, 1024),
        "image",
        multiple=32,
        heavy=3,
    ),
    Case(
        "dinov2-large",
        "4 of 24 layers, 1,024 wide; batch 1",
        _layers("Dinov2Model", "Dinov2Config", real_vision.DINOV2_L, num_hidden_layers=4),
        lambda size: _image(1, size),
        (224, 308, 392, 448, 504),
        "image",
        multiple=14,
        heavy=2,
    ),
    Case(
        "xlm-roberta-xl",
        f"4 of 36 layers, 2,560 wide, {WORDS:,} words; batch 2",
        _layers("XLMRobertaXLModel", "XLMRobertaXLConfig", {}, num_hidden_layers=4, vocab_size=WORDS),
        lambda size: real_text.text(size, 2, WORDS),
        (64, 128, 256, 384, 512),
        "tokens",
        heavy=2,
    ),
    Case(
        "bert-large",
        "6 of 24 layers, 1,024 wide; batch 8",
        _layers("BertModel", "BertConfig", real_text.BERT, num_hidden_layers=6),
        lambda size: real_text.text(size, 8, 30522),
        (64, 128, 256, 384, 512),
        "tokens",
        heavy=2,
    ),
    Case(
        "whisper-large-v3-encoder",
        "4 of 32 layers, 1,280 wide; 1,500 places",
        partial(real_audio.whisper_encoder, 4),
        lambda size: {"input_features": floats(size, 128, 3000)},
        (1, 2, 4, 6, 8),
        heavy=2,
    ),
    Case(
        "convnext-large",
        "18 of 36 blocks, widths 192 to 1,536; 224²",
        _layers("ConvNextForImageClassification", "ConvNextConfig", real_vision.CONVNEXT_L, depths=[3, 3, 9, 3]),
        lambda size: _image(size, 224),
        (1, 2, 4, 8, 16),
        convolutions=True,
        heavy=2,
    ),
    Case(
        "resnet-50",
        "whole; 224²",
        _layers("ResNetForImageClassification", "ResNetConfig", {}),
        lambda size: _image(size, 224),
        (1, 4, 16, 32, 64),
        convolutions=True,
    ),
    Case(
        "sdxl-vae-decoder",
        "whole; latents, whose images are 8 times as high and wide",
        real_diffusion.vae_decoder,
        lambda size: {"latents": floats(1, 4, size, size)},
        (32, 48, 64, 96, 128),
        "latents",
        library="diffusers",
        convolutions=True,
    ),
)
"""The heaviest first."""


def one(
    case: Case,
    dtype: str,
    device: str,
    report: Report,
    turns: Turns,
    choose: bool = True,
    specializations: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a model's row; ``failed`` says in which phase what happened, if it did. It has what is known by then.
    ``specializations``: values of ``kernel_specialization`` with which the program for all sizes is measured, too."""
    report.write(name=case.name, dtype=dtype, device=device, shapes=case.shapes, of=case.of, bound=case.row.bound)
    report.write(environment=environment(), choose=choose)
    on_gpu = device != "cpu"
    stream = torch.cuda.stream(torch.cuda.Stream()) if on_gpu else contextlib.nullcontext()
    try:
        with stream, torch.no_grad(), use_tf32(False):
            _compare(case, getattr(torch, dtype), device, report, turns, choose, specializations)
        report.write(phase="done")
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip()}"[:500]
        report.write(failed={"phase": report.found.get("phase", ""), "error": said})
    return report.found


def _compare(
    case: Case,
    dtype: torch.dtype,
    device: str,
    report: Report,
    turns: Turns,
    choose: bool,
    specializations: Sequence[str],
) -> None:
    """Compile for all sizes, then for each; compare and measure both before the next."""
    executor = "reference" if device == "cpu" else "tensorrt"
    compile = compiler(turns, device)
    compile = compile if choose else compile.without("choose")
    with turns.held(), report.phase("make"):
        model, middle = case.row.built(device, dtype)
        inputs = {size: case.tensors(size, device, dtype) for size in case.sizes}
        best = _exact(model, inputs)
        eager = {size: errors(model(**given), best[size]) for size, given in inputs.items()}

    def module(given: Inputs, **dynamic: Any) -> tuple[Any, torch.nn.Module]:
        compiled = compile(model, (), given, **dynamic)
        return compiled, compiled.module(executor)

    with report.phase("compile"):
        program, ours = module(middle, dynamic_shapes=case.dynamic_shapes())
    report.write(engines=len(program.engines), fallbacks=len(program.coverage.fallback), sizes=[])
    forms = {f"{name}_kernels_": program.module(executor, kernel_specialization=name) for name in specializations}
    results: dict[str, dict[int, list[float]]] = {}
    with turns.held(), report.phase("first calls"):
        for prefix, form in {"": ours, **forms}.items():
            results[prefix] = {size: errors(form(**given), best[size]) for size, given in inputs.items()}
    for size in reversed(case.sizes):
        with report.phase(f"static {size}"):
            static_program, static = module(inputs[size])
        found: dict[str, Any] = {
            "size": size,
            "static_engines": len(static_program.engines),
            "eager_error": max(eager[size]),
        }
        with turns.held():
            results["static_"] = {size: errors(static(**inputs[size]), best[size])}
        for prefix, by_size in results.items():
            found |= {f"{prefix}error": max(by_size[size]), f"{prefix}ratio": ratio(by_size[size], eager[size], dtype)}
        if device != "cpu":
            with turns.held(alone=True):
                modules = {"dynamic": ours, "static": static, **forms}
                found["ms"] = measured({name: _call(each, inputs[size]) for name, each in modules.items()})
        report.write(sizes=[found, *report.found["sizes"]])
        del static, static_program
    if device != "cpu":
        with turns.held(alone=True), report.phase("changing"):
            report.write(changing=round(in_turn(ours, [*inputs.values()]) / alone(ours, [*inputs.values()]), 3))


def _call(module: torch.nn.Module, inputs: Inputs) -> Callable[[], Any]:
    return lambda: module(**inputs)


def _exact(model: torch.nn.Module, inputs: Mapping[int, Inputs]) -> dict[int, Outputs]:
    """What the model returns in float32 at each size, with the same rounded weights and inputs."""
    exact = copy.deepcopy(model).float()

    def given(tensors: Inputs) -> Inputs:
        return {name: x.float() if x.is_floating_point() else x for name, x in tensors.items()}

    return {size: exact(**given(tensors)) for size, tensors in inputs.items()}


def in_turn(call: Callable[..., Any], inputs: Sequence[Inputs]) -> float:
    """Milliseconds of a call when the size changes at every call, each awaited."""
    for given in itertools.chain(*itertools.repeat(inputs, 3)):
        call(**given)
    taken = []
    for given in itertools.chain(*itertools.repeat(inputs, TURNS)):
        synchronize()
        before = time.perf_counter()
        call(**given)
        synchronize()
        taken.append(1e3 * (time.perf_counter() - before))
    return statistics.mean(statistics.median(taken[i :: len(inputs)]) for i in range(len(inputs)))


def alone(call: Callable[..., Any], inputs: Sequence[Inputs]) -> float:
    """The same when every call has the size of the one before it."""
    return statistics.mean(in_turn(call, [given]) for given in inputs)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="what sizes that vary cost, beside static programs")
    made.add_argument("--out", type=Path, help="the file for the rows, to which they are added")
    made.add_argument("--rows", default="", help="a regular expression: models whose name has it")
    made.add_argument("--dtype", default="float16")
    made.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: no times; the reference executor")
    made.add_argument("--processes", type=int, default=10, help="so many models at once")
    made.add_argument("--gpus", type=int, default=1)
    made.add_argument("--seconds", type=float, default=300, help="after which no model is waited for")
    made.add_argument(
        "--limit", type=float, default=280, help="seconds for one model, whose row has the sizes until then"
    )
    made.add_argument("--engines", action="store_true", help="without the stage that may run a program in PyTorch")
    made.add_argument(
        "--specializations", nargs="*", default=(), help="values of kernel_specialization to measure as well: eager"
    )
    made.add_argument("--retry", action="store_true", help="run models again that failed")
    made.add_argument("--child", nargs=2, metavar=("NAME", "REPORT"), help=argparse.SUPPRESS)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 if models are left, 2 if nothing could run."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    cases = {case.name: case for case in CASES if re.search(options.rows, case.name) and case.row.available}
    if options.child:
        name, file = options.child
        report, turns = Report(Path(file)), Turns(of_this_gpu())
        how = (not options.engines, options.specializations)
        return 1 if "failed" in one(cases[name], options.dtype, options.device, report, turns, *how) else 0
    if options.out is None:
        print("benchmarks.real_dynamic: --out names the file for the rows", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command, before = (
        (sys.executable, "-m", "benchmarks.real_dynamic", *arguments, "--child"),
        finished(options.out, not options.retry),
    )
    jobs = [Job(name, options.dtype, (*command, name), case.heavy) for name, case in cases.items()]
    jobs = [job for job in jobs if job.key not in before]
    how = {name: getattr(options, name) for name in ("processes", "gpus", "seconds", "limit")}
    left = run(jobs, options.out, environment=shares(options.processes), **how)
    print(f"{len(jobs) - left} rows added, {left} left: {options.out}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
