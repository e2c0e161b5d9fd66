"""Architectures of transformers over time series, small, with random weights."""

from __future__ import annotations

from benchmarks.signals import Given, architecture, floats

FORMER = {
    "prediction_length": 4,
    "context_length": 12,
    "lags_sequence": [1, 2],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "use_cache": False,
}
PAST = {
    "past_values": floats("batch", 14),
    "past_time_features": floats("batch", 14, 2),
    "past_observed_mask": Given(("batch", 14), "ones"),
    "future_values": floats("batch", 4),
    "future_time_features": floats("batch", 4, 2),
}
PATCHES = {"context_length": 16, "patch_length": 4, "patch_stride": 4, "prediction_length": 4, "num_input_channels": 2}
TST = {**PATCHES, "d_model": 16, "num_hidden_layers": 2, "ffn_dim": 32, "do_mask_input": False}
MIXER = {**PATCHES, "d_model": 8, "num_layers": 2}
TIMES = {
    "patch_length": 8,
    "context_length": 32,
    "horizon_length": 8,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "head_dim": 8,
    "num_attention_heads": 4,
}
VALUES = {"past_values": floats("batch", 16, 2)}

ARCHITECTURES = (
    architecture("informer", "forecast", "InformerModel", ("InformerConfig", {**FORMER, "distil": False}), PAST),
    architecture(
        "autoformer", "forecast", "AutoformerModel", ("AutoformerConfig", {**FORMER, "moving_average": 5}), PAST
    ),
    architecture(
        "time_series_transformer",
        "forecast",
        "TimeSeriesTransformerModel",
        ("TimeSeriesTransformerConfig", FORMER),
        PAST,
    ),
    architecture("patchtst", "forecast", "PatchTSTForPrediction", ("PatchTSTConfig", {**TST, "loss": "mse"}), VALUES),
    architecture(
        "patchtst_classification",
        "classification",
        "PatchTSTForClassification",
        ("PatchTSTConfig", {**TST, "num_targets": 3, "use_cls_token": True}),
        VALUES,
    ),
    architecture(
        "patchtst_regression",
        "regression",
        "PatchTSTForRegression",
        ("PatchTSTConfig", {**TST, "num_targets": 3, "loss": "mse"}),
        VALUES,
    ),
    architecture(
        "patchtsmixer",
        "forecast",
        "PatchTSMixerForPrediction",
        ("PatchTSMixerConfig", {**MIXER, "loss": "mse"}),
        VALUES,
    ),
    architecture(
        "patchtsmixer_mixed",
        "forecast",
        "PatchTSMixerModel",
        ("PatchTSMixerConfig", {**MIXER, "mode": "mix_channel", "self_attn": True}),
        VALUES,
    ),
    architecture(
        "timesfm",
        "forecast",
        "TimesFmModel",
        ("TimesFmConfig", TIMES),
        {
            "past_values": floats("batch", 32),
            "past_values_padding": Given(("batch", 32), "zeros"),
            "freq": Given(("batch", 1), "zeros"),
        },
    ),
)
