"""The command ``pipeline generate``: generate tokens with a language model; prompts and results are token ids."""

from __future__ import annotations

import argparse
import logging
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, get_args

import torch

from pipeline.cli.sources import call_factory
from pipeline.cli.usage import UsageError
from pipeline.compiled import Executor
from pipeline.records.wording import kind_of

GROUP: Final = "pipeline.generation"


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder with config.json, or package.module:factory")
    parser.add_argument(
        "--prompt-ids",
        action="append",
        required=True,
        metavar="ID,ID,…",
        help="a prompt, as token ids; several, for a batch, may have different lengths",
    )
    parser.add_argument("--max-new-tokens", type=int, default=20, metavar="N")
    parser.add_argument("--max-cache-len", type=int, metavar="N", help="default: the prompt and the new tokens")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--num-beams", type=int, default=1, metavar="N", help="of each prompt; default 1")
    parser.add_argument("--sample", action="store_true", help="draw tokens instead of taking the likeliest")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of --sample; default 0")
    parser.add_argument("--executor", choices=get_args(Executor))
    parser.set_defaults(text=run_generate)


def run_generate(options: argparse.Namespace) -> str:
    """Run ``pipeline generate``: generate tokens, and return the text to print, a line of token ids for each prompt."""
    logging.getLogger("torchao").setLevel(logging.ERROR)  # transformers imports it, and it logs what it cannot load
    try:
        compile_for_generation = next((p.load() for p in entry_points(group=GROUP, name="transformers")), None)
    except ImportError as error:  # it names the extra
        raise UsageError(str(error)) from None
    if compile_for_generation is None:
        raise UsageError(f"pipeline is installed without its entry point {GROUP}: install it again (pip install .)")
    prompts = [_parse_token_ids(text) for text in options.prompt_ids]
    for flag, number in ("--max-new-tokens", options.max_new_tokens), ("--num-beams", options.num_beams):
        if number < 1:
            raise UsageError(f"{flag} is {number}: expected at least 1")
    longest, rows = max(map(len, prompts)), len(prompts) * options.num_beams
    model = _load_model(options.model, options.seed).to(getattr(torch, options.dtype))
    most = model.config.get_text_config(decoder=True).vocab_size
    if wrong := [token for prompt in prompts for token in prompt if token >= most]:
        raise UsageError(f"--prompt-ids has the token id {wrong[0]}: expected ids below {most}, the vocabulary size")
    cache = options.max_cache_len or longest + options.max_new_tokens
    sizes = {"max_cache_len": cache, "max_batch": rows, "max_prompt_len": longest}
    try:
        compiled = compile_for_generation(model, **sizes, executor=options.executor)
    except ValueError as error:
        raise UsageError(str(error)) from None
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=compiled.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=compiled.device)
    torch.manual_seed(options.seed)
    drawn = {"temperature": options.temperature, "top_k": options.top_k} if options.sample else {}
    generation = {"max_new_tokens": options.max_new_tokens, "num_beams": options.num_beams, "do_sample": options.sample}
    tokens = compiled.generate(input_ids=ids, attention_mask=mask, pad_token_id=0, **generation, **drawn)
    return "\n".join(",".join(map(str, row)) for row in tokens[:, longest:].tolist())


def _parse_token_ids(csv: str) -> list[int]:
    try:
        found = [int(part) for part in csv.replace(" ", "").split(",")]
    except ValueError:
        raise UsageError(f"--prompt-ids is {csv!r}; expected integers separated by commas, such as 1,2,3") from None
    if any(token < 0 for token in found):
        raise UsageError(f"--prompt-ids is {csv!r}; expected token ids of 0 or more")
    return found


def _load_model(spec: str, seed: int) -> Any:
    """Load a decoder-only model from a folder (with random weights if it has none) or ``package.module:factory``."""
    import transformers

    torch.manual_seed(seed)
    folder = Path(spec)
    if (folder / "config.json").is_file():
        kind: Any = transformers.AutoModelForCausalLM
        if any(folder.glob("*.safetensors")):
            model = kind.from_pretrained(folder, local_files_only=True)
        else:
            model = kind.from_config(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    elif folder.is_dir():
        raise UsageError(f"the folder {spec} has no config.json: pass one that transformers' save_pretrained wrote")
    elif folder.suffix == ".trtp":
        raise UsageError(f"{spec} is a saved program, not a model: call pipeline.load({spec!r}).generate in Python")
    else:
        model = call_factory(spec)
        model = model.eval() if isinstance(model, torch.nn.Module) else model
    if not isinstance(model, transformers.GenerationMixin) or model.config.is_encoder_decoder:  # type: ignore[attr-defined]
        raise UsageError(f"MODEL {spec} is {kind_of(model)}; expected a decoder-only model of transformers")
    return model
