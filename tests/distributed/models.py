"""Models of transformers, sharded by their own plans or by torch's, that two ranks compile together."""

from __future__ import annotations

import contextlib
import re
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTModel,
)
from transformers.distributed import DistributedConfig

import pipeline
from pipeline.compat.transformers import compile_for_generation
from tests.distributed.cases import CLOSE, COMPILE, mesh, run

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT = {"num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 32, "pad_token_id": 0}


def generates(kind: Any, config: Any, rank: int, folder: Path) -> None:
    """A model that is sharded by its plan gives the tokens of the whole one, on all ranks."""
    config.eos_token_id = None
    whole = kind(config).eval()
    place = folder / kind.__name__
    if rank == 0:
        whole.save_pretrained(place)
    dist.barrier()
    plan = DistributedConfig(tp_size=dist.get_world_size(), tp_plan="auto")
    model = kind.from_pretrained(place, distributed_config=plan)
    sizes = {"max_cache_len": 16, "max_batch": 2}
    compiled = compile_for_generation(model, **sizes, compile=COMPILE, executor="reference", shared_weights=False)
    ids = torch.randint(1, 64, (2, 3))
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6}
    expected = whole.generate(ids, **how, do_sample=False)
    assert torch.equal(compiled.generate(ids, **how, do_sample=False), expected)
    if kind is LlamaForCausalLM:
        compiled.save(folder / f"llama{rank}.trtp")
        loaded: Any = pipeline.load(folder / f"llama{rank}.trtp", {"_c10d_functional"})
        assert torch.equal(loaded.generate(ids, **how, do_sample=False), expected)
        torch.manual_seed(rank)
        sampled = compiled.generate(ids, **how, do_sample=True)
        every = [torch.empty_like(sampled) for _ in range(dist.get_world_size())]
        dist.all_gather(every, sampled)
        assert all(torch.equal(sampled, each) for each in every)
        own = torch.rand(1)
        torch.manual_seed(rank)
        assert torch.equal(own, torch.rand(1)) is (rank > 0)  # only the first rank's numbers were drawn


def llama(rank: int, folder: Path) -> None:
    generates(LlamaForCausalLM, LlamaConfig(**SIZES, **TEXT), rank, folder)


def the_page(rank: int, folder: Path) -> None:
    """What docs/sharded.md calls serve.py serves the Llama of the case before it."""
    page = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text(encoding="utf-8")
    own, place = re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)[0], folder / "LlamaForCausalLM"
    names: dict[str, Any] = {"__name__": "serve"}
    exec(compile(own, "serve.py", "exec"), names)
    words = WordLevel({f"w{i}": i for i in range(64)}, unk_token="w1")
    if rank == 0:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="w0")
        tokenizer.backend_tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save_pretrained(place)
    dist.barrier()
    printed = StringIO()
    with patch.object(dist, "init_process_group"), contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        names["main"](str(place), "w5 w9 w7")
    assert (folder / f"model.rank{rank}.trtp").exists()
    assert len(printed.getvalue().split()) == (0 if rank else 11)


def qwen3(rank: int, folder: Path) -> None:
    generates(Qwen3ForCausalLM, Qwen3Config(**SIZES, **TEXT, head_dim=8), rank, folder)


def mixtral(rank: int, folder: Path) -> None:
    config = MixtralConfig(**SIZES, **TEXT, num_local_experts=4, num_experts_per_tok=2)
    generates(MixtralForCausalLM, config, rank, folder)


def vit_and_plan() -> tuple[ViTModel, dict[str, Any]]:
    """An encoder of images, and a plan of torch's for it."""
    model = ViTModel(ViTConfig(**SIZES, image_size=16, patch_size=8, attn_implementation="sdpa")).eval()
    names = [name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear) and "layer" in name]
    columns = {name for name in names if name.endswith(("query", "key", "value", "q_proj", "k_proj", "v_proj"))}
    columns |= {name for name in names if "intermediate" in name or name.endswith("fc1")}
    assert len(columns) == 4
    assert len(names) == 6, names
    return model, {name: ColwiseParallel() if name in columns else RowwiseParallel() for name in names}


def vit(rank: int, folder: Path) -> None:
    """It is right if torch shards it."""
    (model, plan), x = vit_and_plan(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(x).last_hidden_state
    compiled = COMPILE(parallelize_module(model, mesh(), plan), (x,))
    torch.testing.assert_close(run(compiled)(x).last_hidden_state, expected, **CLOSE)


MODELS = (llama, the_page, qwen3, mixtral, vit)
