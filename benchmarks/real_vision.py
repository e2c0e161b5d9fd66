"""Models of images at real size: classification, embeddings, depth and segmentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.real_models import Row, of_library, of_transformers
from benchmarks.signals import floats

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
DINOV2_L = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 518,
    "patch_size": 14,
}
VIT_H = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "intermediate_size": 5120,
    "patch_size": 14,
    "image_size": 224,
}
SWIN_B = {
    "image_size": 384,
    "embed_dim": 128,
    "depths": [2, 2, 18, 2],
    "num_heads": [4, 8, 16, 32],
    "window_size": 12,
}
SWINV2_L = {
    "image_size": 256,
    "embed_dim": 192,
    "depths": [2, 2, 18, 2],
    "num_heads": [6, 12, 24, 48],
    "window_size": 16,
}
CONVNEXT_L = {"depths": [3, 3, 27, 3], "hidden_sizes": [192, 384, 768, 1536], "image_size": 224}
SAM_H = {
    "hidden_size": 1280,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "mlp_dim": 5120,
    "image_size": 1024,
    "global_attn_indexes": [3, 7],
}
SEGFORMER_B5 = {
    "depths": [3, 6, 40, 3],
    "hidden_sizes": [64, 128, 320, 512],
    "decoder_hidden_size": 768,
    "num_labels": 19,
    "image_size": 1024,
}
BEIT_L = {**LARGE, "image_size": 512, "patch_size": 16, "use_relative_position_bias": True, "use_mean_pooling": True}
DPT_L = {**LARGE, "image_size": 384, "backbone_out_indices": [5, 11, 17, 23], "is_hybrid": False}
REGNET_Y_16GF = {
    "layer_type": "y",
    "embedding_size": 32,
    "hidden_sizes": [224, 448, 1232, 3024],
    "depths": [2, 4, 11, 1],
    "groups_width": 112,
}
HIERA_L = {
    "embed_dim": 144,
    "depths": [2, 6, 36, 4],
    "num_heads": [2, 4, 8, 16],
    "image_size": [224, 224],
}


def depth_anything() -> torch.nn.Module:
    """Depth Anything, large: DINOv2 with four of its layers' results."""
    import transformers as hf

    stages = {"out_features": ["stage5", "stage12", "stage18", "stage24"], "reshape_hidden_states": False}
    backbone = hf.Dinov2Config(**DINOV2_L, **stages, apply_layernorm=True)
    shape = {"neck_hidden_sizes": [256, 512, 1024, 1024], "fusion_hidden_size": 256, "reassemble_hidden_size": 1024}
    made: torch.nn.Module = hf.DepthAnythingForDepthEstimation(
        hf.DepthAnythingConfig(backbone_config=backbone, patch_size=14, **shape)
    )
    return made


def _row(name: str, shapes: str, batch: int, size: int, make: Callable[[], torch.nn.Module], **more: Any) -> Row:
    return Row(name, f"{shapes}; {size}², batch {batch}", make, {"pixel_values": floats(batch, 3, size, size)}, **more)


def _timm(name: str, shapes: str, batch: int, size: int, **more: Any) -> Row:
    make, inputs = of_library("timm", "create_model", model_name=name), {"x": floats(batch, 3, size, size)}
    return Row(f"timm-{name}", f"{shapes}; {size}², batch {batch}", make, inputs, library="timm", **more)


def _of(model: str, config: str, fields: dict[str, Any]) -> Callable[[], torch.nn.Module]:
    classes = {"num_labels": 1000} if "Classification" in model else {}
    return of_transformers(model, config, **classes, **fields)


ROWS = (
    _row("dinov2-large", "whole, 0.30 B", 1, 518, _of("Dinov2Model", "Dinov2Config", DINOV2_L), small=True, heavy=2),
    _row("vit-h14", "whole, 0.63 B", 8, 224, _of("ViTModel", "ViTConfig", VIT_H), heavy=3),
    _row(
        "swin-base-384", "whole", 8, 384, _of("SwinForImageClassification", "SwinConfig", SWIN_B), small=True, heavy=3
    ),
    _row("swinv2-large-256", "whole", 4, 256, _of("Swinv2ForImageClassification", "Swinv2Config", SWINV2_L), heavy=4),
    _row(
        "convnext-large",
        "whole",
        8,
        224,
        _of("ConvNextForImageClassification", "ConvNextConfig", CONVNEXT_L),
        convolutions=True,
        small=True,
        heavy=2,
    ),
    _row(
        "resnet-50",
        "whole",
        64,
        224,
        _of("ResNetForImageClassification", "ResNetConfig", {}),
        convolutions=True,
        small=True,
    ),
    _row(
        "regnet-y-16gf",
        "whole",
        16,
        224,
        _of("RegNetForImageClassification", "RegNetConfig", REGNET_Y_16GF),
        convolutions=True,
        small=True,
    ),
    _row(
        "efficientnet-b7",
        "whole",
        4,
        600,
        _of("EfficientNetForImageClassification", "EfficientNetConfig", {}),
        convolutions=True,
        heavy=3,
    ),
    _timm("efficientnet_b7", "whole", 4, 600, convolutions=True, heavy=3),
    _timm("maxvit_base_tf_384", "whole", 4, 384, heavy=3),
    _timm("eva02_large_patch14_448", "whole, 0.30 B", 4, 448, heavy=3),
    _row(
        "sam-vit-huge",
        "image encoder, 8 of 32 layers, 2 of them global, 1,280 wide",
        1,
        1024,
        _of("SamVisionModel", "SamVisionConfig", SAM_H),
        heavy=3,
    ),
    _row(
        "segformer-b5",
        "whole",
        1,
        1024,
        _of("SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER_B5),
        heavy=4,
    ),
    _row("depth-anything-large", "whole", 1, 518, depth_anything, convolutions=True, small=True, heavy=2),
    _row(
        "dpt-large",
        "whole",
        2,
        384,
        _of("DPTForDepthEstimation", "DPTConfig", DPT_L),
        convolutions=True,
        small=True,
        heavy=2,
    ),
    _row("beit-large-512", "whole, 0.31 B", 2, 512, _of("BeitForImageClassification", "BeitConfig", BEIT_L), heavy=3),
    _row("hiera-large", "whole", 8, 224, _of("HieraForImageClassification", "HieraConfig", HIERA_L), heavy=3),
)
