"""Read or replace the inputs that a multimodal model's code passes to its language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from pipeline.compat.transformers.attention import replace_entries
from pipeline.compat.transformers.caches import Pretrained, has_parameter
from pipeline.errors import PipelineError

DEEPSTACK_INPUTS = ("visual_pos_masks", "deepstack_visual_embeds")
"""transformers' names of the mask of image tokens, and of image features that first layers add there (DeepStack)."""
BY_LAYER = "per_layer_inputs"
"""transformers' name of a decoder input with a vector for each token and layer, beside embeddings (Gemma 3n, 4)."""
TABLE = "embed_tokens_per_layer"
"""The name of the language model's module that embeds token ids for each layer (see `BY_LAYER`)."""
IDS_PER_CHUNK = 1024
"""The number of token ids whose embeddings are compared at a time."""


class DecoderCalledError(PipelineError):
    """Raised when a multimodal model's code calls its language model, to stop it; ``given`` has the call's inputs."""

    def __init__(self, given: Mapping[str, Pretrained]) -> None:
        super().__init__("the language model is called")
        self.given = given


def raise_decoder_called(*_: object, **inputs: object) -> None:
    """Raise `DecoderCalledError` with the inputs; this function replaces the ``forward`` of a language model."""
    raise DecoderCalledError(inputs)


@contextmanager
def replace_decoder_inputs(
    decoder: Pretrained,
    is_embedded: torch.Tensor,
    deepstack: torch.Tensor | None,
    later_mask: torch.Tensor | None,
    layer_types: tuple[str, ...] = (),
    per_layer: torch.Tensor | None = None,
) -> Iterator[None]:
    """Return a context in which a language model gets more inputs than its caller passes: image features ``deepstack``
    [layers, rows, length, width], which the first layers add to tokens where ``is_embedded`` [rows, length] is True;
    ``later_mask`` [rows, length, positions], True for later tokens that a token attends to, too, in all layers or those
    of ``layer_types``; and ``per_layer`` [rows, length, layers, width], an additional input of each layer."""

    def add_inputs(
        _: object, args: tuple[object, ...], given: dict[str, Pretrained]
    ) -> tuple[tuple[object, ...], dict[str, Pretrained]]:
        if deepstack is not None:
            given = {**given, **dict(zip(DEEPSTACK_INPUTS, (is_embedded, list(deepstack.unbind(0))), strict=True))}
        if per_layer is not None:
            given = {**given, BY_LAYER: per_layer}
        if later_mask is not None:
            mask = given["attention_mask"]
            if isinstance(mask, Mapping):
                mask = {name: _unmask(each, later_mask) if name in layer_types else each for name, each in mask.items()}
            else:
                mask = _unmask(mask, later_mask)
            given = {**given, "attention_mask": mask}
        return args, given

    replacements: dict[str, object] = {}
    if deepstack is not None:  # at every token, with 0 where nothing is added
        replacements["_deepstack_process"] = lambda hidden, _, more: hidden + more
    if per_layer is not None:  # Gemma 4's own code looks ids up by their embeddings
        replacements["get_per_layer_inputs"] = lambda *_, **__: per_layer
    with (
        decoder.register_forward_pre_hook(add_inputs, with_kwargs=True),
        replace_entries(decoder.__dict__, **replacements),
    ):
        yield


def _unmask(mask: torch.Tensor, later_mask: torch.Tensor) -> torch.Tensor:
    """Return a mask [rows, 1, length, positions] that also allows attention where ``later_mask`` is True."""
    if mask.dtype == torch.bool:
        return mask | later_mask[:, None]
    return mask.masked_fill(later_mask[:, None], 0)


class IgnoredOutput(BaseModelOutputWithPast):
    """A placeholder for the language model's output, which is never used: every missing field is None."""

    def __getattr__(self, name: str) -> None:
        return None


def capture_decoder_inputs(model: Pretrained, **inputs: Pretrained) -> Mapping[str, Pretrained]:
    """Return the inputs that a model's own code passes to its language model; torch.export can trace this."""
    calls: list[Mapping[str, Pretrained]] = []

    def forward(*_: object, **given: Pretrained) -> IgnoredOutput:
        calls.append(given)
        return IgnoredOutput(last_hidden_state=given["inputs_embeds"])

    keep = {"logits_to_keep": 1} if has_parameter(model, "logits_to_keep") else {}
    with replace_entries(vars(model.get_decoder()), forward=forward):
        model(**inputs, **keep)
    return calls[0]


def bypasses_embedding_table(model: Pretrained) -> bool:
    """Return whether a model embeds some token ids otherwise than by its embedding table (Gemma 3n, Gemma 4)."""
    table = model.get_input_embeddings()
    with torch.no_grad(), suppress(Exception):  # a model that does not take ids alone has no such embeddings
        for ids in torch.arange(table.weight.shape[0], device=model.device).split(IDS_PER_CHUNK):
            if not torch.equal(capture_decoder_inputs(model, input_ids=ids[None])["inputs_embeds"], table(ids[None])):
                return True
    return False
