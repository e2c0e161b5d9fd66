"""Run the encoder of an encoder-decoder model; its input is tokens, or embeddings that the model's code computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import field, frozen
from transformers.modeling_outputs import BaseModelOutput

from pipeline.compat.transformers.caches import Pretrained
from pipeline.compat.transformers.modality_encoders import EncoderCall, non_language_modules, record_calls, select_calls
from pipeline.compat.transformers.multimodal import first_logits
from pipeline.compat.transformers.programs import is_like_whisper
from pipeline.compiled import CompiledModule
from pipeline.errors import CaptureError, ExecutionError


@frozen
class EmbeddingSpec:
    """A description of an encoder's inputs, embeddings [rows, length, width], as recorded for an example.

    Attributes:
        width, dtype: the width and dtype of an embedding.
        of_ids: True if the program can run token ids, too: the encoder treats them like the model's embeddings of them.
        towers: the calls of the model's image or audio encoders in this example.
    """

    width: int
    dtype: torch.dtype
    of_ids: bool
    towers: tuple[EncoderCall, ...] = field(repr=False)


def record_encoder_embeddings(model: Pretrained, example: Mapping[str, torch.Tensor]) -> EmbeddingSpec:
    """Record the inputs of a model's encoder while the model generates one token for the example."""
    name, encoder = type(model).__name__, model.get_encoder()
    with record_calls(*(each for _, each in non_language_modules(model))) as seen, record_calls(encoder) as called:
        first_logits(model, example)
    found = [given for module, _, given in called if module is encoder]
    if not found or found[0].get("inputs_embeds") is None:
        why = f"{name} does not pass inputs_embeds to its encoder"
        raise CaptureError(why, "pass encoder_example={'inputs_embeds': …}, or the encoder's input as encoder_example")
    known = {"inputs_embeds", "attention_mask"}
    if more := [n for n, value in found[0].items() if n not in known and isinstance(value, torch.Tensor)]:
        why = f"{name} passes unsupported inputs to its encoder: {', '.join(more)}"
        raise CaptureError(why, "leave encoder_example out: the encoder then takes tokens")
    embeds = found[0]["inputs_embeds"]
    return EmbeddingSpec(embeds.shape[-1], embeds.dtype, _treats_ids_as_embeddings(model), select_calls(model, seen))


def _treats_ids_as_embeddings(model: Pretrained) -> bool:
    """Return whether an encoder's outputs for token ids equal those for the model's embeddings of these ids."""
    ids, encoder = torch.arange(1, 5, device=model.device)[None], model.get_encoder()
    mask = torch.ones_like(ids)
    try:
        with torch.no_grad():
            one = encoder(input_ids=ids, attention_mask=mask)[0]
            other = encoder(inputs_embeds=model.get_input_embeddings()(ids), attention_mask=mask)[0]
    except Exception:  # it takes no ids
        return False
    return bool(torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(one.abs().max())))


def program_mask(
    module: CompiledModule, input_name: str, mask: torch.Tensor | None, shape: tuple[int, ...]
) -> torch.Tensor | None:
    """Return ``mask`` (None: ones of ``shape``) as int64; None if the program has no input ``input_name``."""
    if not any(port.name == input_name and port.kind == "tensor" for port in module.program.inputs):
        return None
    return torch.ones(shape, dtype=torch.int64, device=module.device) if mask is None else mask.to(torch.int64)


class CompiledEncoder(torch.nn.Module):
    """An encoder that runs a program; its output has the field ``cross``, keys and values for cross attention."""

    def __init__(
        self, shell: torch.nn.Module, module: CompiledModule, embedded: EmbeddingSpec | None, embed: torch.nn.Module
    ) -> None:
        super().__init__()
        self.__dict__.update(shell=shell, module=module, embedded=embedded, embed=embed)
        self.main_input_name = shell.main_input_name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["shell"], name)

    def forward(
        self,
        inputs: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **given: Any,
    ) -> BaseModelOutput:
        """Return the encoder's last hidden state and, as ``output["cross"]``, a tuple of keys and values for cross
        attention. The input is ``inputs``, or an argument with the encoder's own name for it (``input_features``)."""
        inputs = given.get(str(self.main_input_name)) if inputs is None else inputs
        inputs = self._program_input(inputs, inputs_embeds)
        mask = program_mask(self.__dict__["module"], "attention_mask", attention_mask, tuple(inputs.shape[:2]))
        if mask is None and attention_mask is not None and not is_like_whisper(self) and not attention_mask.all():
            raise ValueError("attention_mask masks inputs, but this compiled encoder takes no mask: leave padding out")
        hidden, *cross = self.__dict__["module"](inputs=inputs, attention_mask=mask)
        made = BaseModelOutput(last_hidden_state=hidden)
        made["cross"] = tuple(cross)
        return made

    def _program_input(self, inputs: torch.Tensor | None, embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the program's input: token ids, or embeddings if the program was compiled for embeddings."""
        embedded, embed = self.__dict__["embedded"], self.__dict__["embed"]
        if embedded is None:
            if inputs is None:
                hint = f"pass {self.main_input_name}, or compile for embeddings: encoder_example={{'inputs_embeds': …}}"
                raise ExecutionError(f"the encoder's input {self.main_input_name} is missing", hint)
            return inputs
        if embeds is None and not embedded.of_ids:
            why = "input_ids was passed, but the encoder is compiled for embeddings, which it cannot compute from ids"
            raise ExecutionError(why, "pass inputs_embeds")
        return embed(inputs) if embeds is None else embeds
