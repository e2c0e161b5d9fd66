"""transformers' exporters with ``pipeline``: exports run, are saved, and generate, as its own do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.exporters import AutoExportConfig, AutoHfExporter, ExportedModel
from transformers.exporters.utils import decompose_for_generation

import pipeline
from pipeline.compat.transformers.exporters import PipelineConfig, PipelineExporter

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4 if not torch.cuda.is_available() else 1e-2}


def tokens(rows: int, count: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.arange(rows * count).reshape(rows, count) % 99}


def test_an_export_runs_and_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES, max_position_embeddings=32)).eval()
    length = torch.export.Dim("length", min=2, max=16)
    shapes = {"dynamic_shapes": {"input_ids": {1: length}}, "settings": {"min_block_size": 1}}
    config = AutoExportConfig.from_dict({"export_format": "pipeline", **shapes})
    exported = AutoHfExporter.from_config(config).export(model, tokens(2, 7), config)
    assert isinstance(config, PipelineConfig) and isinstance(exported.program, pipeline.Compiled)
    assert exported.program.settings.min_block_size == 1 and not exported.program.coverage.fallback
    exported.save_pretrained(tmp_path)
    assert (tmp_path / "model.trtp").is_file()
    again = ExportedModel.from_pretrained(tmp_path)
    assert isinstance(again.config, BertConfig) and again.device.type == exported.device.type
    for each, count in ((exported, 7), (again, 11)):
        found, expected = each(**tokens(2, count)), model(**tokens(2, count))
        assert type(found) is type(expected)
        for name in ("last_hidden_state", "pooler_output"):
            torch.testing.assert_close(found[name].cpu(), expected[name], **TOLERANCE)


def test_generation_has_a_program_for_each_step() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=32)).eval()
    exported = PipelineExporter().export_for_generation(model, tokens(1, 5), PipelineConfig())
    assert [*exported.components] == ["prefill", "decode"]
    for name, (part, inputs) in decompose_for_generation(model, tokens(1, 5)).items():
        program = exported.components[name].program
        assert len(program.engines) == 1 and program.program.outputs[0].name == "logits"
        given: Any = copy.deepcopy(dict(inputs))
        found, expected = exported.runners[name](**given), part(**copy.deepcopy(dict(inputs)))
        torch.testing.assert_close(found.logits.cpu(), expected.logits, **TOLERANCE)
        caches = zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True)
        for ours, theirs in caches:
            torch.testing.assert_close(ours.keys.cpu(), theirs.keys, **TOLERANCE)
