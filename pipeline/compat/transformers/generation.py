"""``compile_for_generation``: run ``generate`` of a transformers model on engines that update its cache in place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final, TypeAlias

import torch
from attrs import evolve
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

import pipeline.defaults
from pipeline.compat.transformers.attention import one_form
from pipeline.compat.transformers.caches import Filled, Pretrained
from pipeline.compat.transformers.programs import CrossDecoder, Decoder, Encoder, layers_of
from pipeline.compiled import Compiled, Executor
from pipeline.compose.pipelines import Pipeline, as_stage
from pipeline.errors import ExecutionError
from pipeline.frontend.capture import capture
from pipeline.frontend.profiles import Tuned
from pipeline.frozen import FrozenDict
from pipeline.improvements import FOR_ONE_ROW
from pipeline.runtime.module import CompiledModule
from pipeline.stages import outside
from pipeline.stages.improve import Improve
from pipeline.stages.partition import in_pieces, partition
from pipeline.trt import CAPABILITIES

Dims: TypeAlias = dict[str, Any]
"""Something of each input, by its name."""
Stages: TypeAlias = Pipeline[Any, Any]
ONE_ROW: Final = "for_one_row"
"""The stage whose passes are for engines that read weights where they lie, for one row."""


def compile_for_generation(
    model: Pretrained,
    *,
    max_cache_len: int,
    max_batch: int = 1,
    max_prompt_len: int | None = None,
    max_encoder_len: int | None = None,
    compile: Stages | None = None,
    executor: Executor | None = None,
    shared_weights: bool = True,
    **settings: Any,
) -> Pretrained:
    """Compile a language model of transformers, and return an object with transformers' own ``generate``.

    Args:
        model: a decoder-only or encoder-decoder model with a head for tokens. It stays as it is, and is not needed
            afterwards.
        max_cache_len: positions of the cache: the most tokens of a prompt and what is generated after it.
        max_batch: the most sequences at once.
        max_prompt_len: the most tokens of one call, of which a prompt may take several; ``max_cache_len`` if None.
        max_encoder_len: the most tokens that the encoder takes, if it takes tokens; ``max_cache_len`` if None.
        compile: the pipeline; `pipeline.default` with these ``settings`` if None.
        executor: where engines run, as in `Compiled.module`.
        shared_weights: whether engines read one copy of the weights where it lies: then prompts and single tokens have
            engines of their own, and layers of one structure are one engine, which is built once (see
            `pipeline.shared_weights`, `pipeline.engine_per_profile` and ``pipeline.in_pieces(between=…)``). Otherwise
            one engine has both profiles, all layers and the weights. On TensorRT-RTX 1.4 a stage ``for_one_row`` is
            inserted if ``max_batch`` is 1; where ``compile`` has one of that name, it stays.
        settings: of the compilation, by name.

    Returns:
        A `CompiledGeneration` that is an instance of the model's class too: ``generate`` (greedy and sampling),
        ``compiled`` (the programs by name: ``decoder``, and ``encoder``), ``new_state()``.

    Raises:
        CaptureError: the model keeps more of the past than keys and values, or cannot be captured.
        ValueError: a size is less than 1, or a prompt may be longer than the cache.
    """
    limit = max_cache_len if max_prompt_len is None else max_prompt_len
    encoded = max_cache_len if max_encoder_len is None else max_encoder_len
    _check_sizes(max_cache_len, max_batch, limit)
    compile = pipeline.defaults.default(**settings) if compile is None else compile
    compile = _with_shared_weights(compile) if shared_weights else compile
    model = model.eval()
    if model.config.is_encoder_decoder:
        compiled = _encoder_decoder(model, compile, max_cache_len, max_batch, limit, encoded)
    else:
        compiled = {"decoder": _decoder(model, compile, max_cache_len, max_batch, limit)}
    runners = {name: each.module(executor) for name, each in compiled.items()}
    return _shell(model)._with(compiled, runners, max_cache_len, limit)


def _check_sizes(max_cache_len: int, max_batch: int, max_prompt_len: int) -> None:
    sizes = {"max_cache_len": max_cache_len, "max_batch": max_batch, "max_prompt_len": max_prompt_len}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it is at least 1")
    if max_prompt_len > max_cache_len:
        raise ValueError(f"max_prompt_len is {max_prompt_len}, and the cache has {max_cache_len} positions")


def _with_shared_weights(compile: Stages) -> Stages:
    """The pipeline with the stages that leave weights out of engines, and make an engine for each profile."""
    if "partition" in compile and "shared_weights" not in compile:
        compile = compile.insert(outside.shared_weights(), after="partition")
    if "shared_weights" in compile and "engine_per_profile" not in compile:
        compile = compile.insert(outside.engine_per_profile(), after="shared_weights")
    return compile


def _for_one_row(compile: Stages, max_batch: int) -> Stages:
    """The pipeline with the passes for one row, if a step has no more, and engines read weights where they lie; not if
    the user's `improve` has no passes at all, or a stage has that name."""
    improve = getattr(compile["improve"], "function", None) if {"improve", "validate"} <= {*compile.names} else None
    if not isinstance(improve, Improve) or not improve.passes or "shared_weights" not in compile:
        return compile
    if ONE_ROW in compile or max_batch > 1 or not CAPABILITIES.fast_sums:
        return compile
    return compile.insert(evolve(improve, passes=FOR_ONE_ROW, name=ONE_ROW), before="validate")


def _cut(compile: Stages, between: str) -> Stages:
    """The pipeline with cuts between these layers, if weights are shared, and the partitioner is none of the user's."""
    shared = "shared_weights" in compile and "engine_per_profile" in compile
    if not (shared and between and compile["partition"] == as_stage(partition)):
        return compile
    few = compile.settings.max_engines is not None
    return compile if few else compile.replace("partition", in_pieces(between=between))


def _decoder(model: Pretrained, compile: Stages, max_cache_len: int, max_batch: int, limit: int) -> Compiled:
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    step = Decoder(model, max_batch, max_cache_len, {"input_ids": ids}).eval()
    kwargs, dims = _step_inputs(model, max_cache_len, max_batch, limit)
    return _compiled(_for_one_row(compile, max_batch), step, kwargs, dims, model)


def _compiled(
    compile: Stages, step: torch.nn.Module, kwargs: Dims, dims: list[Dims], part: torch.nn.Module
) -> Compiled:
    """A program of the model, most of which is this part of it."""
    compile = _cut(compile, layers_of(step, part))
    with one_form():
        program = capture(step, (), kwargs, settings=compile.settings, profiles=dims)
    made = compile(program)
    assert isinstance(made, Compiled)
    return made


def _step_inputs(model: Pretrained, max_cache_len: int, max_batch: int, limit: int) -> tuple[Dims, list[Dims]]:
    """Example inputs of a step, and how they vary: a profile for single tokens, and one for prompts. Engines are tuned
    for all rows, and for the longest prompt."""
    batch, length = min(2, max_batch), min(2, limit)
    place = {"dtype": torch.int64, "device": model.device}
    kwargs = {
        "input_ids": torch.zeros(batch, length, **place),
        "attention_mask": torch.ones(batch, max_cache_len, dtype=torch.bool, device=model.device),
        "position_ids": torch.zeros(batch, length, **place),
        "start": torch.zeros((), **place),
    }
    rows = {0: _up_to("batch", max_batch)} if max_batch > 1 else {}
    lengths = [1, _up_to("tokens", limit, least=2) if limit > 2 else limit][: 1 + (limit > 1)]
    tokens = [{**rows, 1: each} for each in lengths]
    return kwargs, [{"input_ids": t, "attention_mask": rows, "position_ids": t, "start": None} for t in tokens]


def _up_to(name: str, most: int, least: int = 1) -> Tuned:
    """A dim that engines are tuned for at its greatest size."""
    return Tuned(name, least, most, most)


def _encoder_decoder(
    model: Pretrained, compile: Stages, max_cache_len: int, max_batch: int, limit: int, encoded: int
) -> dict[str, Compiled]:
    """The encoder with what the decoder keeps of it, and the step of the decoder."""
    parts = model.get_encoder(), model.get_decoder()
    encoder = Encoder(model).eval()
    rows = {0: _up_to("batch", max_batch)} if max_batch > 1 else {}
    texts = encoder.main == "input_ids"
    inputs = _encoder_example(model, min(2, max_batch), min(3, encoded) if texts else None)
    lengths = {1: _up_to("encoded", encoded)} if texts and encoded > 1 else {}
    mask = torch.ones(inputs.shape[:2], dtype=torch.int64, device=model.device) if encoder.masked else None
    along = {**rows, **lengths}
    dims = {"inputs": along, "attention_mask": along if encoder.masked else None}
    first = _compiled(compile, encoder, {"inputs": inputs, "attention_mask": mask}, [dims], parts[0])
    with torch.no_grad():
        hidden, *cross = encoder(inputs, mask)
    ids = torch.zeros(inputs.shape[0], 1, dtype=torch.int64, device=model.device)
    example = {"encoder_outputs": BaseModelOutput(last_hidden_state=hidden), "decoder_input_ids": ids}
    step = CrossDecoder(model, max_batch, max_cache_len, example).eval()
    kwargs, own = _step_inputs(model, max_cache_len, max_batch, limit)
    kwargs |= {"encoder_mask": mask, "cross": tuple(cross)}
    wide = {**rows, **({2: lengths[1]} if lengths else {})}
    beside = {"encoder_mask": along if encoder.masked else None, "cross": tuple(wide for _ in cross)}
    own = [{**profile, **beside} for profile in own]
    return {"encoder": first, "decoder": _compiled(_for_one_row(compile, max_batch), step, kwargs, own, parts[1])}


def _encoder_example(model: Pretrained, batch: int, length: int | None) -> torch.Tensor:
    """Inputs of the encoder: tokens, or as many features and frames as the model is made for."""
    if length is not None:
        return torch.zeros(batch, length, dtype=torch.int64, device=model.device)
    config, encoder = model.config, model.get_encoder()
    frames = config.max_source_positions * encoder.conv1.stride[0] * encoder.conv2.stride[0]
    return torch.zeros(batch, config.num_mel_bins, frames, dtype=model.dtype, device=model.device)


def _shell(model: Pretrained) -> CompiledGeneration:
    """The model's object without its weights: it has everything that ``generate`` reads, with meta tensors."""
    with torch.device("meta"):
        made = type(model)(copy.deepcopy(model.config))
    kinds = {base: type(f"Compiled{base.__name__}", (CompiledGeneration, base), {}) for base in (type(model),)}
    made.__class__ = kinds[type(model)]
    made.generation_config = copy.deepcopy(model.generation_config)
    made.__dict__["_place"], made.__dict__["_float"] = model.device, model.dtype
    return made.eval()  # type: ignore[no-any-return]


class CompiledGeneration:
    """A language model whose forward pass runs engines. Everything else comes from the model's own class.

    Attributes:
        compiled: the programs by name; `Compiled` records.
        runners: the modules that run them; the decoder's has the cache as its state.
        max_cache_len: positions of the cache.
        max_prompt_len: the most tokens of one call of the decoder.
    """

    compiled: Mapping[str, Compiled]
    runners: Mapping[str, CompiledModule]
    max_cache_len: int
    max_prompt_len: int
    config: Any

    def _with(
        self,
        compiled: Mapping[str, Compiled],
        runners: Mapping[str, CompiledModule],
        max_cache_len: int,
        max_prompt_len: int,
    ) -> CompiledGeneration:
        place = runners["decoder"].device
        self.__dict__.update(compiled=FrozenDict(compiled), runners=FrozenDict(runners), _place=place)
        self.__dict__.update(max_cache_len=max_cache_len, max_prompt_len=max_prompt_len)
        self.__dict__["_starts"] = torch.arange(max_cache_len, device=place)
        return self

    @property
    def device(self) -> torch.device:
        """The device of outputs, to which inputs are copied."""
        return self.__dict__["_place"]  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return self.__dict__["_float"]  # type: ignore[no-any-return]

    def new_state(self) -> CompiledGeneration:
        """Return another object over the same engines and weights, with a cache of its own, to generate other sequences
        at the same time."""
        runners = {**self.runners, "decoder": self.runners["decoder"].new_state()}
        made = copy.copy(self)
        return made._with(self.compiled, runners, self.max_cache_len, self.max_prompt_len)

    @torch.no_grad()
    def generate(self, *args: object, **kwargs: Any) -> Pretrained:
        """Generate as transformers does, with all its arguments except beams and others that need other caches.

        Raises:
            ValueError: several beams, an assistant or a ``cache_implementation`` are asked for.
        """
        config = kwargs.get("generation_config") or self.generation_config  # type: ignore[attr-defined]
        for name, plain in (("num_beams", 1), ("num_beam_groups", 1), ("penalty_alpha", None)):
            asked = kwargs.get(name, getattr(config, name, None))
            if asked not in (None, plain):
                raise ValueError(f"{name} is {asked!r}: a compiled model generates greedily or samples, one beam a row")
        if kwargs.get("assistant_model") is not None or kwargs.get("prompt_lookup_num_tokens"):
            raise ValueError("assisted decoding goes back in the cache, which a compiled model does not: leave it out")
        if getattr(config, "cache_implementation", None) is not None or kwargs.get("cache_implementation"):
            raise ValueError("cache_implementation is given: a compiled model has a cache of its own, leave it out")
        kwargs.setdefault("past_key_values", Filled(self.max_cache_len, self.runners["decoder"]))
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    def get_encoder(self, *args: object, **kwargs: Any) -> Pretrained:
        """The compiled encoder, if there is one."""
        if "encoder" not in self.runners:
            return super().get_encoder(*args, **kwargs)  # type: ignore[misc]
        return CompiledEncoder(super().get_encoder(*args, **kwargs), self.runners["encoder"])  # type: ignore[misc]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Filled | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the logits of the last token, as the decoder's program computes them, and fill the cache further. More
        tokens than ``max_prompt_len`` take several calls of the program.

        Raises:
            ExecutionError: the cache has no room for the tokens, or the inputs are not tokens.
        """
        crossed = "encoder" in self.runners
        tokens, mask = (decoder_input_ids, decoder_attention_mask) if crossed else (input_ids, attention_mask)
        if tokens is None or not isinstance(past_key_values, Filled):
            raise ExecutionError("a compiled model takes token ids, and is called by its generate", "call generate")
        places = decoder_position_ids if crossed else position_ids
        beside: Dims = {}
        if crossed:
            past_key_values.cross = cross = encoder_outputs.get("cross") or past_key_values.cross
            encoded = cross[0].shape[0], cross[0].shape[2]
            beside["encoder_mask"] = _mask(self.runners["decoder"], "encoder_mask", attention_mask, encoded)
            beside["cross"] = cross
        logits = None
        for inputs in _steps(self, tokens.to(self.device), mask, places, past_key_values):
            logits = self.runners["decoder"](**inputs, **beside)
        made: Any = Seq2SeqLMOutput if crossed else CausalLMOutputWithPast
        return made(logits=logits, past_key_values=past_key_values)


def _steps(
    model: CompiledGeneration,
    tokens: torch.Tensor,
    mask: torch.Tensor | None,
    places: torch.Tensor | None,
    filled: Filled,
) -> Iterator[dict[str, torch.Tensor]]:
    """The inputs of each step of at most ``max_prompt_len`` tokens; the cache's count follows them."""
    rows, length = tokens.shape
    if filled.length + length > model.max_cache_len:
        raise ExecutionError(
            f"{filled.length + length} tokens, and the cache has {model.max_cache_len} positions",
            "generate fewer (max_new_tokens), or compile with a larger max_cache_len",
        )
    if filled.mask is None:
        filled.mask = torch.zeros(rows, model.max_cache_len, dtype=torch.bool, device=model.device)
    each = model.max_prompt_len
    wheres = repeat(None) if places is None else places.split(each, -1)
    for piece, where in zip(tokens.split(each, 1), wheres, strict=False):
        start, end = filled.length, filled.length + piece.shape[1]
        filled.mask[:, start:end] = True if mask is None else mask[:, start:end].to(torch.bool)
        if where is None:
            where = (filled.mask[:, :end].to(torch.int64).cumsum(-1) - 1).clamp(min=0)[:, start:]
        filled.length = end
        where = where.to(model.device).expand(rows, end - start).contiguous()
        starts = model.__dict__["_starts"]
        yield {"input_ids": piece, "attention_mask": filled.mask, "position_ids": where, "start": starts[start]}


def _mask(module: CompiledModule, name: str, mask: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The mask that a program takes under this name: ones where none is given; None where it takes none."""
    if not any(port.name == name and port.kind == "tensor" for port in module.program.inputs):
        return None
    return torch.ones(shape, dtype=torch.int64, device=module.device) if mask is None else mask.to(torch.int64)


class CompiledEncoder(torch.nn.Module):
    """An encoder whose forward pass runs an engine; its output has keys and values of cross attention, ``cross``."""

    def __init__(self, shell: torch.nn.Module, module: CompiledModule) -> None:
        super().__init__()
        self.__dict__["shell"], self.__dict__["module"] = shell, module
        self.main_input_name = shell.main_input_name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["shell"], name)

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, input_features: Any = None, **_: object
    ) -> BaseModelOutput:
        """The last hidden state, and ``cross``."""
        inputs = input_ids if input_ids is not None else input_features
        mask = _mask(self.__dict__["module"], "attention_mask", attention_mask, tuple(inputs.shape[:2]))
        hidden, *cross = self.__dict__["module"](inputs=inputs, attention_mask=mask)
        made = BaseModelOutput(last_hidden_state=hidden)
        made["cross"] = tuple(cross)
        return made
