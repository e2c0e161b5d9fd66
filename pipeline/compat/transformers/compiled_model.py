"""``CompiledGeneration``: a transformers model whose forward pass runs engines, which update its cache in place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, TypeAlias

import torch
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from pipeline.compat.transformers.caches import Filled, FilledCross, Pretrained, cache_name
from pipeline.compat.transformers.programs import hears_all
from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.runtime.module import CompiledModule

Inputs: TypeAlias = dict[str, Any]


def shell(model: Pretrained) -> CompiledGeneration:
    """The model's object without its weights: it has everything that ``generate`` reads, with meta tensors."""
    with torch.device("meta"):
        made = type(model)(copy.deepcopy(model.config))
    kinds = {base: type(f"Compiled{base.__name__}", (CompiledGeneration, base), {}) for base in (type(model),)}
    made.__class__ = kinds[type(model)]
    made.generation_config = copy.deepcopy(model.generation_config)
    made.__dict__.update(_place=model.device, _float=model.dtype, _cache_name=cache_name(model))
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

    def over(
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
        return made.over(self.compiled, runners, self.max_cache_len, self.max_prompt_len)

    @torch.no_grad()
    def generate(self, *args: object, **kwargs: Any) -> Pretrained:
        """Generate as transformers does, with all its arguments except beams and others that need other caches. The
        cache is used with ``use_cache=False`` too, which checkpoints may have from their training: it changes no token.

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
        cache = FilledCross if "encoder" in self.runners else Filled
        kwargs.setdefault(self.__dict__["_cache_name"], cache(self.max_cache_len, self.runners["decoder"]))
        return super().generate(*args, **{**kwargs, "use_cache": True})  # type: ignore[misc]

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
        cache_params: Filled | None = None,
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
        filled = past_key_values if cache_params is None else cache_params
        if tokens is None or not isinstance(filled, Filled):
            raise ExecutionError("a compiled model takes token ids, and is called by its generate", "call generate")
        places = decoder_position_ids if crossed else position_ids
        beside: Inputs = {}
        if crossed:
            filled.cross = cross = encoder_outputs.get("cross") or filled.cross
            encoded = cross[0].shape[0], cross[0].shape[2]
            beside["encoder_mask"] = _mask(self.runners["decoder"], "encoder_mask", attention_mask, encoded)
            beside["cross"] = cross
        logits = None
        for inputs in _steps(self, tokens.to(self.device), mask, places, filled):
            logits = self.runners["decoder"](**inputs, **beside)
        made: Any = (Seq2SeqLMOutput if crossed else CausalLMOutputWithPast)(logits=logits)
        made[self.__dict__["_cache_name"]] = filled
        return made


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
        self, inputs: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None, **given: Any
    ) -> BaseModelOutput:
        """The last hidden state, and ``cross``.

        Raises:
            ValueError: the mask hides something, and the program has no mask.
        """
        inputs = given[str(self.main_input_name)] if inputs is None else inputs
        mask = _mask(self.__dict__["module"], "attention_mask", attention_mask, tuple(inputs.shape[:2]))
        if mask is None and attention_mask is not None and not hears_all(self) and not attention_mask.all():
            raise ValueError("attention_mask hides a part of what the encoder takes: a compiled one takes all of it")
        hidden, *cross = self.__dict__["module"](inputs=inputs, attention_mask=mask)
        made = BaseModelOutput(last_hidden_state=hidden)
        made["cross"] = tuple(cross)
        return made
