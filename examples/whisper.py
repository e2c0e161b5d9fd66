"""Transcribe: Whisper's encoder and decoder, with ``generate`` of transformers."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from pipeline.compat.transformers import compile_for_generation


def main() -> None:
    """Compile a small Whisper with random weights; transcribe noise, as eager does."""
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=16, max_source_positions=50,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    sound = torch.randn(1, 16, 100)  # mel bins, frames
    options = {"max_new_tokens": 4, "do_sample": False}
    compiled = compile_for_generation(model, max_cache_len=16)
    tokens = compiled.generate(sound, **options)
    assert torch.equal(tokens.cpu(), model.generate(sound, **options))
    print({name: str(program) for name, program in compiled.compiled.items()}, tokens.tolist())


if __name__ == "__main__":
    main()
