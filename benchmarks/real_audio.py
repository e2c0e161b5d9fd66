"""Models of sound at real size: recognition, speech, codecs and music."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from benchmarks.real_models import Row, of_transformers
from benchmarks.signals import floats, ids

WHISPER = {
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 8,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "vocab_size": 51866,
}
WAV2VEC2 = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
}
MUSICGEN = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 32, "ffn_dim": 8192}


def whisper_encoder(layers: int = 32) -> torch.nn.Module:
    """Whisper's encoder alone."""
    config = hf.WhisperConfig(**{**WHISPER, "encoder_layers": layers})
    return hf.models.whisper.modeling_whisper.WhisperEncoder(config)  # type: ignore[no-any-return]


def whisper_decoder() -> torch.nn.Module:
    """Whisper's decoder alone."""
    return hf.models.whisper.modeling_whisper.WhisperDecoder(hf.WhisperConfig(**WHISPER, use_cache=False))  # type: ignore[no-any-return]


class Codec(torch.nn.Module):
    """A codec's way from its latents to sound."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """[N, C, frames] -> [N, 1, samples]"""
        sound: torch.Tensor = self.decoder(latents)
        return sound


ROWS = (
    Row(
        "whisper-large-v3-encoder",
        "whole, 0.64 B; 30 s, 1,500 places, batch 1",
        whisper_encoder,
        {"input_features": floats(1, 128, 3000)},
        small=True,
        heavy=3,
    ),
    Row(
        "whisper-large-v3-decoder",
        "8 of 32 layers, 1,280 wide; 64 tokens over 1,500 places, batch 4",
        whisper_decoder,
        {"input_ids": ids(50000, 4, 64), "encoder_hidden_states": floats(4, 1500, 1280)},
        heavy=2,
    ),
    Row(
        "wav2vec2-large",
        "whole, 0.32 B; 10 s, batch 4",
        of_transformers("Wav2Vec2Model", "Wav2Vec2Config", **WAV2VEC2),
        {"input_values": floats(4, 160000)},
        small=True,
        heavy=2,
    ),
    Row(
        "w2v-bert-2.0",
        "8 of 24 layers, 1,024 wide; 20 s, 1,000 frames, batch 2",
        of_transformers("Wav2Vec2BertModel", "Wav2Vec2BertConfig", num_hidden_layers=8),
        {"input_features": floats(2, 1000, 160)},
        heavy=2,
    ),
    Row(
        "speecht5-hifigan",
        "whole, 15 M; 500 frames, 8 s of speech",
        of_transformers("SpeechT5HifiGan", "SpeechT5HifiGanConfig"),
        {"spectrogram": floats(1, 500, 80)},
        convolutions=True,
        small=True,
    ),
    Row(
        "dac-44khz-decoder",
        "whole; 430 frames, 5 s of sound",
        lambda: Codec(hf.DacModel(hf.DacConfig(downsampling_ratios=[2, 4, 8, 8], sampling_rate=44100))),
        {"latents": floats(1, 1024, 430)},
        convolutions=True,
        small=True,
    ),
    Row(
        "musicgen-large",
        "8 of 48 layers, 2,048 wide; 4 codebooks, 500 tokens, batch 2",
        of_transformers("MusicgenForCausalLM", "MusicgenDecoderConfig", **MUSICGEN, use_cache=False),
        {"input_ids": ids(2000, 8, 500), "encoder_hidden_states": floats(2, 64, 2048)},
        heavy=2,
    ),
)
