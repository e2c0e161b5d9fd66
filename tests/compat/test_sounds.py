"""Towers that cut sound into chunks: one program for sounds of every length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline

pytest.importorskip("transformers")

import transformers

from pipeline.compat.transformers.attention import Windows
from pipeline.compat.transformers.encoder_parts import group_of_any_size
from pipeline.compat.transformers.modality_encoders import EncoderCall
from pipeline.compat.transformers.part_families import AudioEncoders
from tests.compat import sights
from tests.compat.seen import SOUND
from tests.compat.test_packed import run_by
from tests.compat.test_towers import compiled_for, ran


def qwen2_5_omni() -> torch.nn.Module:
    """Its chunks are of 50 frames, and attend to themselves."""
    module = transformers.models.qwen2_5_omni.modeling_qwen2_5_omni
    own = {**SOUND, "n_window": 25, "max_source_positions": 50, "output_dim": 32}
    return module.Qwen2_5OmniAudioEncoder(module.Qwen2_5OmniAudioEncoderConfig(**own))  # type: ignore[no-any-return]


def qwen3_omni() -> torch.nn.Module:
    """Its chunks are of 100 frames, and attend to two."""
    module = transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe
    own: dict[str, Any] = {**SOUND, "n_window": 50, "n_window_infer": 200, "max_source_positions": 20}
    own |= {"output_dim": 32, "downsample_hidden_size": 8, "conv_chunksize": 8}
    config = module.Qwen3OmniMoeAudioEncoderConfig(**own)
    return module.Qwen3OmniMoeAudioEncoder(config)  # type: ignore[no-any-return]


def call(*lengths: int) -> EncoderCall:
    """Sounds of so many frames, as Qwen2.5-Omni passes them; the other tower does not read the lengths behind."""
    x = torch.randn(8, sum(lengths), generator=torch.Generator().manual_seed(0))
    own = torch.tensor(lengths)
    return EncoderCall("t", (x,), {"feature_lens": own, "aftercnn_lens": own // 2})


@pytest.mark.parametrize("made", [qwen2_5_omni, qwen3_omni], ids=lambda made: made.__name__)
def test_sounds_of_every_length_are_one_program(made: Any) -> None:
    torch.manual_seed(0)
    tower = made().eval()
    found = group_of_any_size(AudioEncoders, tower, [call(350)])
    assert found is not None
    stages = pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)
    program = stages(pipeline.capture(found.module, **found.inputs))
    run = run_by(found, program.module("reference"))
    for lengths in (350,), (100,), (101,), (200, 99), (30, 100, 20):
        given = call(*lengths)
        with torch.no_grad():
            ours, theirs = (each(*given.args, **given.kwargs) for each in (run, tower))
        torch.testing.assert_close(ours.last_hidden_state, theirs.last_hidden_state, rtol=1e-4, atol=1e-5)


def test_what_it_is_not_for() -> None:
    found = group_of_any_size(AudioEncoders, qwen3_omni().eval(), [call(350)])
    assert found is not None and found.text == "sounds of 100 to 400 frames"
    for lengths in (99,), (50, 60), (401,), (100, 100, 100, 50, 1):
        assert not found.split_call(call(*lengths))


def test_a_model_that_hears() -> None:
    model, _ = sights.model("qwen3_omni")
    compiled = compiled_for(model, sights.sound(300), require_full_compilation=True)
    assert set(compiled.compiled) == {"decoder", "tower", "tower_1"}
    found = ran(model, compiled, [sights.sound(300), sights.sound(200), sights.sound(100)])
    assert found == [{"tower": 1}, {"tower_1": 1}, {"tower_1": 1}]


def test_a_tower_that_reads_features_beside_its_chunks_has_none() -> None:
    tower = qwen3_omni().eval()
    own = type(tower).forward

    def forward(self: torch.nn.Module, input_features: torch.Tensor, **given: Any) -> Any:
        return own(self, input_features, **given), input_features.mean()

    tower.forward = forward.__get__(tower)
    assert group_of_any_size(AudioEncoders, tower, [call(350)]) is None


def test_a_tower_with_other_windows_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gives is not what its windows say."""
    tower = qwen3_omni().eval()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.copy_(torch.randn_like(parameter) / 4)
    assert group_of_any_size(AudioEncoders, tower, [call(350)]) is not None
    everywhere = Windows.from_ends
    monkeypatch.setattr(Windows, "from_ends", lambda ends, size: everywhere(ends[[0, -1]], int(ends[-1])))
    assert group_of_any_size(AudioEncoders, tower, [call(350)]) is None


@pytest.mark.parametrize(
    "other",
    [
        EncoderCall("t", (torch.randn(8, 350),), {}),
        EncoderCall("t", (torch.randn(8, 350),), {"feature_lens": torch.tensor([300])}),
        EncoderCall("t", (torch.randn(1, 8, 350),), {"feature_lens": torch.tensor([350])}),
        EncoderCall("t", (torch.randn(8, 90),), {"feature_lens": torch.tensor([90])}),
    ],
    ids=["no lengths", "other lengths", "rows", "one chunk"],
)
def test_other_calls_have_none(other: EncoderCall) -> None:
    assert group_of_any_size(AudioEncoders, qwen3_omni().eval(), [other]) is None
