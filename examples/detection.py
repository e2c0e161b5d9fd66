"""Find objects: YOLOS, whose boxes and classes come in one dict."""

import torch
from transformers import YolosConfig, YolosForObjectDetection

import pipeline


def main() -> None:
    """Compile, detect, keep the boxes that are likely."""
    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=[32, 32],
        patch_size=16, num_detection_tokens=5, num_labels=4,
    )  # fmt: skip
    model = YolosForObjectDetection(config).eval().requires_grad_(False)
    x = torch.rand(1, 3, 32, 32)
    compiled = pipeline.compile(model, args=(x,))
    found = compiled(x)
    scores, labels = found.logits.softmax(-1)[..., :-1].max(-1)
    likely = scores > 0.2
    torch.testing.assert_close(found.pred_boxes, model(x).pred_boxes, rtol=1e-2, atol=1e-2)
    print(compiled, *zip(labels[likely].tolist(), found.pred_boxes[likely].tolist(), strict=True))


if __name__ == "__main__":
    main()
