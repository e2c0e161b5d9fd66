"""``compile_for_generation``: compile a transformers language model with profiles for prompts and single tokens."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeAlias, get_args

import torch
from attrs import fields
from transformers import GenerationMixin

import pipeline.defaults
from pipeline.capture.capture import capture
from pipeline.compat.transformers import multimodal, programs, verified_logits
from pipeline.compat.transformers.attention import without_branches
from pipeline.compat.transformers.caches import Pretrained
from pipeline.compat.transformers.compiled_model import CompiledGeneration, create_weightless_copy
from pipeline.compat.transformers.decoder_input_hook import bypasses_embedding_table
from pipeline.compat.transformers.encoder_parts import CallGroup, compile_encoders, group_calls, group_of_any_size
from pipeline.compat.transformers.encoders import EmbeddingSpec, record_encoder_embeddings
from pipeline.compat.transformers.modality_encoders import EncoderCall
from pipeline.compat.transformers.multimodal import PromptSpec, Sample
from pipeline.compat.transformers.part_families import FAMILIES
from pipeline.compat.transformers.recurrences import replace_recurrences
from pipeline.compat.transformers.sizes import DimSizes, Example, Sizes, dim_up_to
from pipeline.compiled import Compiled, Executor
from pipeline.compose.pipelines import Pipeline, as_stage
from pipeline.errors import CaptureError
from pipeline.records.library_support import warn_if_untested
from pipeline.records.wording import kind_of
from pipeline.settings import CompilationSettings
from pipeline.stages import outside
from pipeline.stages.partition import in_pieces, partition

log = logging.getLogger(__name__)

Inputs: TypeAlias = dict[str, Any]
Dims: TypeAlias = dict[str, Any]
"""The dynamic shapes of a program's inputs, by input name."""
Programs: TypeAlias = dict[str, Compiled]
Stages: TypeAlias = Pipeline[Any, Any]


def compile_for_generation(
    model: Pretrained,
    *,
    max_cache_len: int,
    max_batch: int = 1,
    max_prompt_len: int | None = None,
    max_draft_len: int = 0,
    max_encoder_len: int | None = None,
    encoder_example: Example = None,
    prompt_lens: Sequence[int] = (),
    compile: Stages | None = None,
    executor: Executor | None = None,
    shared_weights: bool = True,
    verify: bool | verified_logits.OnWrong = False,
    **settings: Any,
) -> Pretrained:
    """Compile a language model of transformers, and return an object with transformers' own ``generate``.

    Args:
        model: a decoder or encoder-decoder with a language-model head. It is not changed, and not needed afterwards.
        max_cache_len: the positions of the KV cache: the maximum number of tokens in a prompt and its continuation.
        max_batch: the maximum number of sequences in a call; each beam is a sequence.
        max_prompt_len: the most tokens in a call; a longer prompt needs several calls. None: ``max_cache_len``.
        max_draft_len: the most draft tokens in a call, which has a separate engine; more tokens need several calls.
        max_encoder_len: the maximum number of tokens in an encoder's input.
        encoder_example: an input of an encoder without token ids: pixels or audio [rows, …]; Whisper needs no example.
            For a multimodal decoder: its processor's output for the largest prompt, or a list for several sizes.
        prompt_lens: lengths of prompts of ``max_batch`` rows that get engines of fixed sizes, which are faster.
        compile: the pipeline to compile with; None: `pipeline.default` with these ``settings``.
        executor: where engines run, as in `Compiled.module`.
        shared_weights: let engines share one copy of the weights. Then prompts and single tokens have separate engines,
            and layers of equal structure share an engine (`pipeline.shared_weights`, ``in_pieces``).
        verify: compare logits with the model's in a wider dtype, as `pipeline.verify` does; ``"warn"`` only warns.
        settings: fields of `pipeline.CompilationSettings`, by name.

    Returns: a `CompiledGeneration`, which is also an instance of the model's own class.

    Raises:
        AgreementError: ``verify`` finds logit errors beyond the bound.
        CaptureError: the model caches other tensors than keys, values and states, or cannot be captured.
        ValueError: a size is out of range, an argument does not apply to the model, or ``encoder_example`` is missing.
    """
    prompt, encoded = (max_cache_len if most is None else most for most in (max_prompt_len, max_encoder_len))
    sizes = Sizes(max_cache_len, max_batch, prompt, max_draft_len, encoded, frozenset(prompt_lens))
    compile = _choose_pipeline(model, compile, settings, verify)
    step = _with_shared_weights(compile) if shared_weights else compile
    made = _compile_all_parts(model.eval(), compile, step, sizes, encoder_example, executor)
    if verify:
        verified_logits.verify_logits(model, made, sizes, encoder_example, "warn" if verify == "warn" else "raise")
    return made


def _compile_all_parts(
    model: Pretrained, compile: Stages, compile_step: Stages, sizes: Sizes, example: Example, executor: Executor | None
) -> Pretrained:
    """Compile a model's decoder and encoder, and its image and audio encoders; return the compiled model. ``compile``
    is the pipeline; ``compile_step`` is the same pipeline or, if requested, the variant whose engines share weights."""
    seen, heard, calls = _record_examples(model, example)
    encoded = heard or (example if isinstance(example, torch.Tensor) else None)
    if model.config.is_encoder_decoder:
        compiled = _compile_encoder_decoder(model, compile_step, sizes, encoded)
    elif encoded is None:
        compiled = _compile_decoder(model, compile_step, sizes, seen)
    else:
        raise ValueError(f"encoder_example is a tensor, but {type(model).__name__} has no encoder: leave it out")
    seeing, towers = _compile_encoders(model, compile, compile_step, calls)
    runners = {name: each.module(executor) for name, each in (compiled | seeing).items()}
    made = create_weightless_copy(model, multimodal.merge_specs(seen), heard, towers, runners)
    return made.set_programs(compiled | seeing, runners, sizes.limits)


def _choose_pipeline(model: object, compile: Stages | None, settings: Mapping[str, Any], verify: object) -> Stages:
    """Return ``compile`` or, if it is None, `pipeline.default` with ``settings``. Raise a `TypeError` if both were
    passed, ``model`` is no language model, or the name of a setting looks like a misspelled parameter of
    `compile_for_generation`; a `ValueError` for an unknown value of ``verify``."""
    if isinstance(model, CompiledGeneration):
        raise TypeError("the model is compiled already: call its generate, or pass the uncompiled model")
    if not isinstance(model, GenerationMixin):
        why = f"model is {kind_of(model)}: expected a language model of transformers"
        raise TypeError(f"{why} with the method generate, such as AutoModelForCausalLM.from_pretrained returns")
    warn_if_untested("transformers")
    own = set(signature(compile_for_generation).parameters) - {"settings"}
    for name in settings.keys() - {each.name for each in fields(CompilationSettings)}:
        for like in get_close_matches(name, own, 1):
            raise TypeError(f"compile_for_generation has no argument {name!r}: did you mean {like}?")
    if verify not in (True, False, *get_args(verified_logits.OnWrong)):
        raise ValueError(f"verify is {verify!r}: expected True, False, 'raise' or 'warn'")
    if compile is not None and not isinstance(compile, Pipeline):
        due = "expected a pipeline, such as pipeline.default(); pass settings by name"
        raise TypeError(f"compile is {kind_of(compile)}, {due}")
    if compile is not None and settings:
        why = f"compile= was passed together with the settings {', '.join(settings)}"
        raise TypeError(f"{why}: pass the settings to the pipeline, compile=pipeline.default({next(iter(settings))}=…)")
    return pipeline.defaults.default(**settings) if compile is None else compile


def _compile_encoders(
    model: Pretrained, compile: Stages, compile_step: Stages, calls: Sequence[EncoderCall]
) -> tuple[Programs, dict[str, CallGroup]]:
    """Compile a model's image and audio encoders: for each encoder, a program for each group of similar example calls
    and, if possible, one for calls of any size. Return two dicts by program name: programs, and the calls they run.
    ``compile_step`` makes programs that share weights, ``compile`` the program of an encoder's only example group."""
    groups = group_calls(model, calls)
    counts = Counter(group.path for group in groups)
    for path in counts:
        own = [call for call in calls if call.path == path]
        every = (group_of_any_size(family, model.get_submodule(path), own) for family in FAMILIES)
        groups += [each for each in every if each is not None]

    def compile_encoder(group: CallGroup) -> Compiled:
        shared = counts[group.path] > 1 or not group.calls
        pattern = programs.layer_path_pattern(group.module, group.tower)
        stages = _with_engine_cuts(compile_step, pattern) if shared else compile
        found = stages(capture(group.module, **group.inputs, settings=compile.settings))
        assert isinstance(found, Compiled)
        return found

    rows = compile_encoders(groups, compile_encoder, compile.settings.require_full_compilation)
    return {name: each for name, (_, each) in rows.items()}, {name: each for name, (each, _) in rows.items()}


def _record_examples(
    model: Pretrained, example: Example
) -> tuple[tuple[Sample, ...], EmbeddingSpec | None, list[EncoderCall]]:
    """Run the model on example prompts. Return a `Sample` of each prompt (of a decoder-only model, else none), the
    `EmbeddingSpec` (of an encoder-decoder model, else None), and the recorded calls of image and audio encoders. All
    are empty if ``example`` is None or a tensor. Raise an error if ``generate`` calls ``generate`` of a submodule."""
    able = [(name, each) for name, each in model.named_children() if hasattr(each, "generate")]
    inside = next((name for name, each in able if model.get_decoder() in {*each.modules()}), "")
    if inside and type(model).generate is not GenerationMixin.generate:
        why = f"{type(model).__name__}.generate calls generate of its submodule {inside}, so compile the submodule"
        part = f"compile_for_generation(model.{inside}, encoder_example={{'inputs_embeds': embeddings}})"
        raise CaptureError(why, f"assign model.{inside} = {part}, with embeddings [batch, length, hidden size]")
    if example is None or isinstance(example, torch.Tensor):
        return (), None, []
    every = (example,) if isinstance(example, Mapping) else example
    if not isinstance(every, Sequence) or not every or not all(isinstance(each, Mapping) for each in every):
        raise TypeError(f"encoder_example is {kind_of(example)}: pass a tensor, processor output, or a list of these")
    if model.config.is_encoder_decoder:
        heard = [record_encoder_embeddings(model, each) for each in every]
        return (), heard[0], [call for each in heard for call in each.towers]
    seen = tuple(multimodal.record_sample(model, each) for each in every)
    return seen, None, [call for each in seen for call in each.towers]


def _with_shared_weights(compile: Stages) -> Stages:
    """Return the pipeline with stages that keep weights outside engines, and that build an engine for each profile."""
    if "partition" in compile and "shared_weights" not in compile:
        compile = compile.insert(outside.shared_weights(), after="partition")
    if "shared_weights" in compile and "engine_per_profile" not in compile:
        compile = compile.insert(outside.engine_per_profile(), after="shared_weights")
    return compile


def _with_engine_cuts(compile: Stages, layer_pattern: str) -> Stages:
    """Return ``compile``; if it shares weights and has the default partitioner, with engines cut between the layers."""
    shared = "shared_weights" in compile and "engine_per_profile" in compile
    if not (shared and layer_pattern and compile["partition"] == as_stage(partition)):
        return compile
    few = compile.settings.max_engines is not None
    return compile if few else compile.replace("partition", in_pieces(between=layer_pattern))


def _compile_decoder(model: Pretrained, compile: Stages, sizes: Sizes, samples: Sequence[Sample]) -> Programs:
    """Compile a decoder-only model; for a multimodal one, check first that its decoder step agrees with ``samples``."""
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    kind = programs.MultimodalDecoder if samples else programs.Decoder
    step = kind(model, sizes.batch, sizes.cache, {"input_ids": ids}).eval()
    spec = multimodal.merge_specs(samples)
    if isinstance(step, programs.MultimodalDecoder) and spec is not None:
        step.ahead_layer_types = spec.ahead_layer_types
        step.model_embeds = bool(spec.by_layer) or bypasses_embedding_table(model)
    for sample in samples:
        with replace_recurrences(step):
            multimodal.check_logits(step, sample, sizes.cache)
    kwargs, dims = _decoder_inputs(model, sizes, spec)
    return {"decoder": _capture_and_compile(compile, step, kwargs, dims, model)}


def _capture_and_compile(
    compile: Stages, part: torch.nn.Module, inputs: Inputs, dims: list[Dims], cut_module: torch.nn.Module
) -> Compiled:
    """Capture and compile a decoder step or an encoder, with engines cut at the layers of ``cut_module``."""
    compile = _with_engine_cuts(compile, programs.layer_path_pattern(part, cut_module))
    with without_branches(part), replace_recurrences(part):
        program = capture(part, (), inputs, settings=compile.settings, profiles=dims)
    made = compile(program)
    assert isinstance(made, Compiled)
    return made


def _decoder_inputs(model: Pretrained, sizes: Sizes, spec: PromptSpec | None = None) -> tuple[Inputs, list[Dims]]:
    """Return example inputs of a decoder step, and the dynamic shapes of these inputs in each profile."""
    batch, length = min(2, sizes.batch), min(2, sizes.prompt)
    place = {"dtype": torch.int64, "device": model.device}
    positions, dtype = multimodal.position_ids_format(spec)
    prompt = {} if spec is None else multimodal.zero_inputs(spec, (batch, length), sizes.cache, model.device)
    kwargs = {
        "input_ids": torch.zeros(batch, length, **place),
        "attention_mask": torch.ones(batch, sizes.cache, dtype=torch.bool, device=model.device),
        "position_ids": torch.zeros(*positions, batch, length, dtype=dtype, device=model.device),
        "start": torch.zeros((), **place),
        **({"wanted": torch.zeros(2, **place)} if sizes.draft else {}),
        **prompt,
    }
    dims: list[Dims] = []
    for rows, tokens, wanted in sizes.decoder_profiles():
        each: DimSizes = {**rows, 1: tokens}
        own: Dims = {"input_ids": each, "attention_mask": rows, "position_ids": _shift_dims(len(positions), each)}
        beside = {name: _shift_dims(1, each) if name == "added" else each for name in prompt}
        dims.append({**own, "start": None, **({"wanted": {0: wanted}} if sizes.draft else {}), **beside})
    return kwargs, dims


def _shift_dims(count: int, sizes: DimSizes) -> DimSizes:
    """Return the sizes, a dict by dim, with ``count`` added to each dim: for 1, ``{0: size}`` becomes ``{1: size}``."""
    return {dim + count: size for dim, size in sizes.items()}


def _compile_encoder_decoder(
    model: Pretrained, compile: Stages, sizes: Sizes, example: torch.Tensor | EmbeddingSpec | None
) -> Programs:
    """Compile the encoder (with the keys and values of cross attention) and the decoder step; return both programs."""
    if sizes.fixed:
        raise ValueError("prompt_lens is for decoder-only models, and this model has an encoder: leave prompt_lens out")
    parts = model.get_encoder(), model.get_decoder()
    encoder = programs.Encoder(model, isinstance(example, EmbeddingSpec)).eval()
    rows, texts = sizes.row_dim, encoder.texts
    inputs = _example_encoder_inputs(model, min(2, sizes.batch), min(3, sizes.encoded) if texts else None, example)
    lengths = {1: dim_up_to("encoded", sizes.encoded)} if texts and sizes.encoded > 1 else {}
    mask = torch.ones(inputs.shape[:2], dtype=torch.int64, device=model.device) if encoder.masked else None
    along: DimSizes = {**rows, **lengths}
    dims = {"inputs": along, "attention_mask": along if encoder.masked else None}
    first = _capture_and_compile(compile, encoder, {"inputs": inputs, "attention_mask": mask}, [dims], parts[0])
    with torch.no_grad():
        hidden, *cross = encoder(inputs, mask)
    ids = torch.zeros(inputs.shape[0], 1, dtype=torch.int64, device=model.device)
    first_step = {"encoder_outputs": programs.EncoderOutput(last_hidden_state=hidden), "decoder_input_ids": ids}
    step = programs.CrossDecoder(model, sizes.batch, sizes.cache, first_step).eval()
    kwargs, own = _decoder_inputs(model, sizes)
    kwargs |= {"encoder_mask": mask, "cross": tuple(cross)}
    wide = {**rows, **({2: lengths[1]} if lengths else {})}
    beside = {"encoder_mask": along if encoder.masked else None, "cross": tuple(wide for _ in cross)}
    own = [{**profile, **beside} for profile in own]
    return {"encoder": first, "decoder": _capture_and_compile(compile, step, kwargs, own, parts[1])}


def _example_encoder_inputs(
    model: Pretrained, batch: int, length: int | None, example: torch.Tensor | EmbeddingSpec | None
) -> torch.Tensor:
    """Return encoder input of ``batch`` rows: copies of an example's row, or zeros (tokens, embeddings, audio)."""
    encoder = model.get_encoder()
    if isinstance(example, EmbeddingSpec):
        return torch.zeros(batch, length or 1, example.width, dtype=example.dtype, device=model.device)
    if length is not None:
        if example is not None:
            raise ValueError(f"the encoder of {type(model).__name__} takes tokens: leave encoder_example out")
        return torch.zeros(batch, length, dtype=torch.int64, device=model.device)
    if example is not None:
        row = example[:1].to(model.device, model.dtype if example.is_floating_point() else None)
        return row.expand(batch, *row.shape[1:]).clone()
    if not programs.is_like_whisper(encoder):
        takes = f"the encoder of {type(model).__name__} takes {encoder.main_input_name}, of unknown sizes"
        raise ValueError(f"{takes}: pass an example tensor as encoder_example")
    return torch.zeros(batch, *programs.audio_input_sizes(model), dtype=model.dtype, device=model.device)
