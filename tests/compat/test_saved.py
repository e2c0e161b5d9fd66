"""A compiled language model is saved and loaded: the same tokens, from its files and transformers alone."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import pipeline
from pipeline.compat.transformers import CompiledGeneration, compile_for_generation

IDS = torch.tensor([[3, 5, 7, 9], [2, 4, 6, 8]])
OPTIONS: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def llama() -> Any:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8
    )
    return LlamaForCausalLM(config)


def t5() -> Any:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


@pytest.fixture(scope="module", params=[llama, t5], ids=["decoder", "encoder-decoder"])
def made(request: pytest.FixtureRequest) -> CompiledGeneration:
    torch.manual_seed(0)
    return compile_for_generation(request.param().eval(), max_cache_len=12, max_batch=2)


def _loaded(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pipeline.ArtifactWarning)
        return pipeline.load(path)


def _tokens(model: Any) -> torch.Tensor:
    return model.generate(IDS, attention_mask=torch.ones_like(IDS), **OPTIONS)


def test_a_file_and_a_folder_generate_the_same_tokens(made: Any, tmp_path: Path) -> None:
    expected = _tokens(made)
    made.save(tmp_path / "llm.trtp")
    made.save_pretrained(tmp_path / "folder")
    moved = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-moved"))
    for path in (moved / "llm.trtp", moved / "folder"):
        loaded = _loaded(path)
        assert torch.equal(_tokens(loaded), expected)
        assert type(loaded).__name__ == type(made).__name__ and loaded.limits == made.limits
        assert loaded.config.to_dict() == made.config.to_dict() and loaded.dtype == made.dtype
    assert {"config.json", "generation_config.json", "model.trtp"} <= {
        each.name for each in (moved / "folder").iterdir()
    }
    again = loaded.new_state()
    assert torch.equal(_tokens(again), expected)


def test_what_cannot_be_pickled_says_so(made: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled: use model\.save\(path\) and pipeline\.load\(path\)"):
        pickle.dumps(made)


def test_a_class_that_transformers_lacks_is_not_saved(tmp_path: Path) -> None:
    class Mine(LlamaForCausalLM):
        """A model with code of its own."""

    torch.manual_seed(0)
    mine = compile_for_generation(Mine(llama().config).eval(), max_cache_len=8)
    with pytest.raises(
        pipeline.ArtifactError, match=r"Mine is not a class of transformers .*, and a file does not contain"
    ):
        mine.save(tmp_path / "mine.trtp")
    assert not any(tmp_path.iterdir())
