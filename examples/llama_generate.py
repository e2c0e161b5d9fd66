"""Generate text: Llama on a cache that TensorRT updates in place; saved and loaded without its weights."""

import tempfile
import warnings
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from pipeline.compat.transformers import compile_for_generation


def main() -> None:
    """Compile a small Llama with random weights; generate, save, load, generate again."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval()
    compiled = compile_for_generation(model, max_cache_len=24, max_batch=2)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    tokens = compiled.generate(ids, **options)
    assert torch.equal(tokens.cpu(), model.generate(ids, **options))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", pipeline.ArtifactWarning)  # without a GPU it runs on the CPU
        compiled.save(Path(folder) / "llama.trtp")
        loaded = pipeline.load(Path(folder) / "llama.trtp")
        assert torch.equal(loaded.generate(ids, **options), tokens)
    print(tokens.tolist())


if __name__ == "__main__":
    main()
