"""Audio architectures of transformers, small, with random weights: what hears, speaks and packs sound."""

from __future__ import annotations

from benchmarks.images import ENCODER_DECODER, THIN, ViT
from benchmarks.signals import architecture, floats, ids, ones

CONVOLUTIONS = {"conv_dim": [16, 16, 16], "conv_stride": [4, 4, 2], "conv_kernel": [8, 8, 4]}
POSITIONS = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 3}
EARS = {**ViT, **CONVOLUTIONS, **POSITIONS, "vocab_size": 20, "layerdrop": 0.0}
WAVES = {"input_values": floats("batch", "samples")}
MASKED = {**WAVES, "attention_mask": ones("batch", "samples")}
BOTH = {**ENCODER_DECODER, "use_cache": False}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
TARGET = {"decoder_input_ids": ids(50, "batch", "target")}
SPEECHT5 = {**BOTH, **CONVOLUTIONS, **POSITIONS, **SPECIAL, "hidden_size": 32, "vocab_size": 50, "num_mel_bins": 8}
CODEC = {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2], "codebook_size": 16}
GAN = {"upsample_initial_channel": 16, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4]}
RESBLOCKS = {"resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 3]]}
VITS = {
    **RESBLOCKS,
    **GAN,
    "vocab_size": 38,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "flow_size": 16,
    "spectrogram_bins": 9,
    "duration_predictor_filter_channels": 16,
    "prior_encoder_num_flows": 2,
    "noise_scale": 0.0,
    "noise_scale_duration": 0.0,
}
UNIVNET = {
    "model_in_channels": 8,
    "model_hidden_channels": 8,
    "num_mel_bins": 10,
    "resblock_kernel_sizes": [3, 3],
    "resblock_stride_sizes": [4, 2],
    "resblock_dilation_sizes": [[1, 3], [1, 3]],
    "kernel_predictor_num_blocks": 1,
    "kernel_predictor_hidden_channels": 8,
}
CLAP = {
    "num_mel_bins": 8,
    "spec_size": 32,
    "hidden_size": 32,
    "patch_embeds_hidden_size": 16,
    "depths": [1, 2],
    "num_hidden_layers": 2,
    "num_attention_heads": [2, 4],
    "window_size": 4,
    "projection_dim": 16,
}
MOONSHINE = {
    **SPECIAL,
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "use_cache": False,
}

ARCHITECTURES = (
    architecture(
        "wav2vec2", "recognition", "Wav2Vec2ForCTC", ("Wav2Vec2Config", EARS), WAVES, dtypes=("float32", "float16")
    ),
    architecture("wav2vec2_mask", "recognition", "Wav2Vec2Model", ("Wav2Vec2Config", EARS), MASKED),
    architecture(
        "wav2vec2_stable",
        "recognition",
        "Wav2Vec2ForCTC",
        ("Wav2Vec2Config", {**EARS, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
        WAVES,
    ),
    architecture(
        "wav2vec2_conformer", "recognition", "Wav2Vec2ConformerForCTC", ("Wav2Vec2ConformerConfig", EARS), WAVES
    ),
    architecture(
        "wav2vec2_conformer_rotary",
        "recognition",
        "Wav2Vec2ConformerModel",
        ("Wav2Vec2ConformerConfig", {**EARS, "position_embeddings_type": "rotary"}),
        WAVES,
    ),
    architecture(
        "wav2vec2_bert",
        "recognition",
        "Wav2Vec2BertModel",
        ("Wav2Vec2BertConfig", {**ViT, "feature_projection_input_dim": 8, "conv_depthwise_kernel_size": 7}),
        {"input_features": floats("batch", "frames", 8)},
    ),
    architecture(
        "wav2vec2_xvector",
        "speaker",
        "Wav2Vec2ForXVector",
        ("Wav2Vec2Config", {**EARS, "tdnn_dim": [16, 16, 24], "tdnn_kernel": [3, 2, 1], "tdnn_dilation": [1, 2, 1]}),
        WAVES,
    ),
    architecture("hubert", "recognition", "HubertForCTC", ("HubertConfig", EARS), WAVES),
    architecture("wavlm", "recognition", "WavLMForCTC", ("WavLMConfig", EARS), WAVES),
    architecture("unispeech_sat", "recognition", "UniSpeechSatForCTC", ("UniSpeechSatConfig", EARS), WAVES),
    architecture("sew", "recognition", "SEWForCTC", ("SEWConfig", EARS), WAVES),
    architecture("sew_d", "recognition", "SEWDForCTC", ("SEWDConfig", {**EARS, "max_position_embeddings": 64}), WAVES),
    architecture(
        "data2vec_audio",
        "recognition",
        "Data2VecAudioForCTC",
        ("Data2VecAudioConfig", {**EARS, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3}),
        WAVES,
    ),
    architecture(
        "ast",
        "classification",
        "ASTForAudioClassification",
        (
            "ASTConfig",
            {**ViT, "patch_size": 4, "frequency_stride": 2, "time_stride": 4, "max_length": 24, "num_mel_bins": 8},
        ),
        {"input_values": floats("batch", 24, 8)},
    ),
    architecture(
        "clap_audio",
        "embedding",
        "ClapAudioModelWithProjection",
        ("ClapAudioConfig", CLAP),
        {"input_features": floats("batch", 1, 120, 8)},
    ),
    architecture(
        "whisper_encoder",
        "classification",
        "WhisperForAudioClassification",
        (
            "WhisperConfig",
            {**BOTH, **SPECIAL, "d_model": 32, "num_mel_bins": 8, "max_source_positions": 20, "vocab_size": 50},
        ),
        {"input_features": floats("batch", 8, 40)},
    ),
    architecture(
        "speech2text",
        "recognition",
        "Speech2TextForConditionalGeneration",
        (
            "Speech2TextConfig",
            {**BOTH, **SPECIAL, "d_model": 32, "input_feat_per_channel": 8, "conv_channels": 16, "vocab_size": 50},
        ),
        {"input_features": floats("batch", "frames", 8), **TARGET},
    ),
    architecture(
        "moonshine",
        "recognition",
        "MoonshineForConditionalGeneration",
        ("MoonshineConfig", MOONSHINE),
        {"input_values": floats("batch", "long_samples"), **TARGET},
    ),
    architecture(
        "speecht5_recognition",
        "recognition",
        "SpeechT5ForSpeechToText",
        ("SpeechT5Config", SPEECHT5),
        {**WAVES, **TARGET},
    ),
    architecture(
        "speecht5_speech",
        "speech",
        "SpeechT5ForTextToSpeech",
        ("SpeechT5Config", {**SPEECHT5, "speech_decoder_prenet_dropout": 0.0, "speaker_embedding_dim": 8}),
        {
            "input_ids": ids(50, "batch", "sequence"),
            "decoder_input_values": floats("batch", "target", 8),
            "speaker_embeddings": floats("batch", 8),
        },
    ),
    architecture(
        "speecht5_hifigan",
        "vocoder",
        "SpeechT5HifiGan",
        ("SpeechT5HifiGanConfig", {**GAN, **RESBLOCKS, "model_in_dim": 8}),
        {"spectrogram": floats("batch", "frames", 8)},
    ),
    architecture(
        "univnet",
        "vocoder",
        "UnivNetModel",
        ("UnivNetConfig", UNIVNET),
        {"input_features": floats("batch", "frames", 10), "noise_sequence": floats("batch", "frames", 8)},
    ),
    architecture(
        "fastspeech2_conformer_hifigan",
        "vocoder",
        "FastSpeech2ConformerHifiGan",
        ("FastSpeech2ConformerHifiGanConfig", {**GAN, **RESBLOCKS, "model_in_dim": 8}),
        {"spectrogram": floats("batch", "frames", 8)},
    ),
    architecture("vits", "speech", "VitsModel", ("VitsConfig", VITS), {"input_ids": ids(38, "batch", "sequence")}),
    architecture(
        "encodec",
        "codec",
        "EncodecModel",
        ("EncodecConfig", CODEC),
        {"input_values": floats("batch", 1, "samples")},
    ),
    architecture(
        "dac",
        "codec",
        "DacModel",
        (
            "DacConfig",
            {
                "encoder_hidden_size": 8,
                "decoder_hidden_size": 32,
                "downsampling_ratios": [2, 4],
                "n_codebooks": 3,
                "codebook_size": 16,
                "codebook_dim": 4,
            },
        ),
        {"input_values": floats("batch", 1, "samples")},
    ),
    architecture(
        "mimi",
        "codec",
        "MimiModel",
        (
            "MimiConfig",
            {
                **CODEC,
                **ViT,
                "head_dim": 8,
                "num_key_value_heads": 4,
                "hidden_size": 32,
                "codebook_dim": 16,
                "vector_quantization_hidden_dimension": 16,
                "num_quantizers": 3,
                "upsample_groups": 32,
            },
        ),
        {"input_values": floats("batch", 1, "samples")},
    ),
    architecture(
        "musicgen_decoder",
        "music",
        "MusicgenForCausalLM",
        (
            "MusicgenDecoderConfig",
            {**THIN, "vocab_size": 50, "ffn_dim": 48, "num_codebooks": 2, "use_cache": False, **SPECIAL},
        ),
        {"input_ids": ids(50, 4, "sequence")},
    ),
    architecture(
        "parakeet_encoder",
        "recognition",
        "ParakeetEncoder",
        (
            "ParakeetEncoderConfig",
            {**ViT, "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5, "subsampling_factor": 4},
        ),
        {"input_features": floats("batch", "frames", 16)},
    ),
)
