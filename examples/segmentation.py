"""Label each pixel: SegFormer in mixed precision, its result resized to the image."""

import torch
from torch import nn
from transformers import SegformerConfig, SegformerForSemanticSegmentation

import pipeline


class Labels(nn.Module):
    """The label of each pixel: what comes after the model is part of the program, too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, H, W]"""
        logits = self.model(pixel_values=pixel_values).logits
        return nn.functional.interpolate(logits, size=pixel_values.shape[-2:], mode="bilinear").argmax(1)


def main() -> None:
    """Compile, label, count pixels that eager labels the same."""
    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_attention_heads": [1, 2], "num_encoder_blocks": 2}
    ranks = {"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    config = SegformerConfig(**sizes, **ranks, decoder_hidden_size=8, num_labels=4)
    model = Labels(SegformerForSemanticSegmentation(config)).eval().requires_grad_(False)
    x = torch.rand(1, 3, 64, 64)
    compiled = pipeline.compile(model, args=(x,), precision="float16")
    same = (compiled(x) == model(x)).float().mean().item()
    assert same > 0.95
    print(compiled, f"{same:.1%} of the pixels as in float32")


if __name__ == "__main__":
    main()
