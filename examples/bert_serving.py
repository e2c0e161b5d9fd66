"""Serve BERT: sentences of every length in batches, from one file that needs no code of the model."""

import tempfile
import warnings
from pathlib import Path

import torch
from torch.export import Dim
from transformers import BertConfig, BertModel

import pipeline


def main() -> None:
    """Compile for batches of 1 to 8 and 2 to 64 tokens; save, load, call."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = BertModel(config).eval().requires_grad_(False)
    ids = torch.randint(100, (2, 8))
    dims = {0: Dim("batch", max=8), 1: Dim("tokens", min=2, max=64)}
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    compiled = pipeline.compile(model, kwargs=given, dynamic_shapes=dict.fromkeys(given, dims))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", pipeline.ArtifactWarning)  # without a GPU it runs on the CPU
        compiled.save(Path(folder) / "bert.trtp")
        served = pipeline.load(Path(folder) / "bert.trtp").module()
        more = torch.randint(100, (5, 21))
        found = served(input_ids=more, attention_mask=torch.ones_like(more)).last_hidden_state
    torch.testing.assert_close(found.cpu(), model(more).last_hidden_state, rtol=1e-2, atol=1e-2)
    print(compiled, tuple(found.shape))


if __name__ == "__main__":
    main()
