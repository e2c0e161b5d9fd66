"""Encoder-decoders whose encoder takes pixels or sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch
import transformers

from pipeline.compat.transformers import compile_for_generation

SIZES: Final[Mapping[str, Any]] = {"max_cache_len": 32, "max_batch": 2, "max_prompt_len": 8, "executor": "reference"}
HEADS: Final = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
WIDTHS: Final = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48}


def trocr() -> Any:
    sees = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32}
    writes = {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(hidden_size=32, patch_size=8, **sees),
        transformers.TrOCRConfig(vocab_size=99, d_model=32, cross_attention_hidden_size=32, **writes),
    )
    return transformers.VisionEncoderDecoderModel(config)


def speech_to_text() -> Any:
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "conv_channels": 16}
    config = transformers.Speech2TextConfig(vocab_size=99, **sizes, **HEADS, **WIDTHS)
    return transformers.Speech2TextForConditionalGeneration(config)


def moonshine() -> Any:
    layers = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
    heads = {f"{part}_num_{kind}_heads": 4 for part in ("encoder", "decoder") for kind in ("attention", "key_value")}
    config = transformers.MoonshineConfig(vocab_size=99, hidden_size=32, intermediate_size=48, **layers, **heads)
    return transformers.MoonshineForConditionalGeneration(config)


MODELS: Final[Mapping[Callable[[], Any], tuple[int, ...]]] = {
    trocr: (3, 32, 32),
    speech_to_text: (40, 80),
    moonshine: (4000,),
}
"""What makes a model, and the sizes of a row that its encoder takes."""


def made(make: Callable[[], Any]) -> Any:
    """A model whose tokens differ from row to row, as far as its structure lets them."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


def generated(model: Any, given: torch.Tensor, **more: Any) -> Any:
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1, "decoder_start_token_id": 1}
    return model.generate(
        given, **how, eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_logits=True, **more
    )


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_tokens_are_eagers(make: Callable[[], Any]) -> None:
    model = made(make)
    compiled = compile_for_generation(model, encoder_example=torch.zeros(1, *MODELS[make]), **SIZES)
    for rows in (2, 1):
        given = torch.randn(rows, *MODELS[make])
        ours, theirs = generated(compiled, given), generated(model, given)
        assert torch.equal(ours.sequences, theirs.sequences)
        torch.testing.assert_close(torch.stack(ours.logits), torch.stack(theirs.logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("make", "name"), [(trocr, "pixel_values"), (moonshine, "input_values")])
def test_what_an_encoder_takes_is_asked_for_in_words(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"takes {name}.*: pass .*encoder_example"):
        compile_for_generation(made(make), **SIZES)


def test_a_model_without_use_for_an_example_says_so() -> None:
    small = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 1, "num_heads": 4, "vocab_size": 99}
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**small)).eval()
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    )
    for model, words in ((t5, "takes tokens"), (llama, "has no encoder")):
        with pytest.raises(ValueError, match=words):
            compile_for_generation(model, encoder_example=torch.zeros(1, 4), **SIZES)


@pytest.mark.parametrize("make", [speech_to_text, moonshine])
def test_a_mask_that_hides_sound_is_refused(make: Callable[[], Any]) -> None:
    compiled = compile_for_generation(made(make), encoder_example=torch.zeros(1, *MODELS[make]), **SIZES)
    given = torch.randn(2, *MODELS[make])
    mask = torch.ones(given.shape[:2], dtype=torch.int64)
    generated(compiled, given, attention_mask=mask)
    mask[0, 30:] = 0
    with pytest.raises(ValueError, match="attention_mask masks inputs"):
        generated(compiled, given, attention_mask=mask)
