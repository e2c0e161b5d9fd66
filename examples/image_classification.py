"""Classify images: a ResNet for batches of 1 to 8, compared with eager."""

import torch
from transformers import ResNetConfig, ResNetForImageClassification

import pipeline


def main() -> None:
    """Compile, classify, compare."""
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10)
    model = ResNetForImageClassification(config).eval().requires_grad_(False)
    images = pipeline.Input(min_shape=(1, 3, 64, 64), opt_shape=(4, 3, 64, 64), max_shape=(8, 3, 64, 64))
    compiled = pipeline.compile(model, kwargs={"pixel_values": images}, require_full_compilation=True)
    x = torch.rand(3, 3, 64, 64)
    logits = compiled(pixel_values=x).logits
    torch.testing.assert_close(logits, model(x).logits, rtol=1e-2, atol=1e-2)  # on a GPU float32 products are TF32
    print(compiled, "classes", logits.argmax(-1).tolist())


if __name__ == "__main__":
    main()
