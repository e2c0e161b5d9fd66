"""Vision architectures of transformers, small, with random weights: what says something of each pixel."""

from __future__ import annotations

import torch

from benchmarks.architectures import by_example
from benchmarks.images import (
    HEADS,
    MOBILEVIT,
    PATCHES,
    STAGE_NAMES,
    STAGES,
    THIN,
    THIN_4,
    VITDET,
    WINDOWS,
    ViT,
    ViT_4,
    image,
)

BEIT = {
    "image_size": 64,
    "patch_size": 16,
    "use_relative_position_bias": True,
    "out_indices": [0, 1, 2, 3],
    "use_auxiliary_head": True,
    "auxiliary_channels": 16,
    **ViT,
    "num_hidden_layers": 4,
}
DPT = {
    **PATCHES,
    **ViT,
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 12, 16, 16],
    "fusion_hidden_size": 16,
    "is_hybrid": False,
}
DEPTH = {
    "backbone_config": ("Dinov2Config", {**PATCHES, **THIN_4}),
    "patch_size": 8,
    "reassemble_hidden_size": 32,
    "neck_hidden_sizes": [8, 12, 16, 16],
    "fusion_hidden_size": 16,
    "head_hidden_size": 8,
}
ZOEDEPTH = {
    "backbone_config": ("BeitConfig", {**PATCHES, **ViT_4}),
    "neck_hidden_sizes": [8, 12, 16, 16],
    "fusion_hidden_size": 16,
    "bottleneck_features": 16,
    "num_relative_features": 8,
    "bin_embedding_dim": 8,
    "num_attractors": [4, 2, 2, 1],
}
UPERNET = {
    "hidden_size": 16,
    "auxiliary_channels": 8,
    "pool_scales": [1, 2],
    "backbone_config": ("ConvNextConfig", {**STAGES, "out_features": STAGE_NAMES}),
}
VITPOSE = {
    "scale_factor": 2,
    "backbone_config": ("VitPoseBackboneConfig", {**THIN, "image_size": [32, 32], "patch_size": [8, 8]}),
}
MAE = {
    **PATCHES,
    **ViT,
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 32,
}
SUPERPOINT = {
    "encoder_hidden_sizes": [8, 16, 16, 16],
    "decoder_hidden_size": 16,
    "descriptor_decoder_dim": 16,
    "max_keypoints": 10,
}
SEGGPT = {
    "image_size": [64, 32],
    "patch_size": 8,
    "mlp_dim": 48,
    "intermediate_hidden_state_indices": [0, 1],
    "pretrain_image_size": 32,
    "decoder_hidden_size": 16,
    "merge_index": 0,
    **THIN,
}
VITMATTE = {
    "backbone_config": (
        "VitDetConfig",
        {
            **VITDET,
            "num_channels": 4,
            "out_features": ["stage2"],
            "patch_size": 16,
            "pretrain_image_size": 64,
            "image_size": 64,
        },
    ),
    "hidden_size": 32,
    "convstream_hidden_sizes": [8, 8, 8],
    "fusion_hidden_sizes": [16, 8, 8, 8],
}

ARCHITECTURES = (
    image("beit_segmentation", "BeitForSemanticSegmentation", "BeitConfig", 64, task="segmentation", **BEIT),
    image(
        "swin2sr",
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        16,
        task="super resolution",
        **{**WINDOWS, "patch_size": 1, "image_size": 16},
    ),
    image(
        "mobilenet_v2_segmentation",
        "MobileNetV2ForSemanticSegmentation",
        "MobileNetV2Config",
        64,
        task="segmentation",
        depth_multiplier=0.25,
        image_size=64,
    ),
    image(
        "mobilevit_segmentation",
        "MobileViTForSemanticSegmentation",
        "MobileViTConfig",
        64,
        task="segmentation",
        aspp_out_channels=16,
        **MOBILEVIT,
    ),
    image(
        "segformer_any_size",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        64,
        32,
        task="segmentation",
        decoder_hidden_size=16,
        **STAGES,
    ),
    image(
        "glpn", "GLPNForDepthEstimation", "GLPNConfig", 64, 32, task="depth", decoder_hidden_size=16, **HEADS, **STAGES
    ),
    image("dpt", "DPTForDepthEstimation", "DPTConfig", 32, task="depth", **DPT),
    image("dpt_segmentation", "DPTForSemanticSegmentation", "DPTConfig", 32, task="segmentation", **DPT),
    image("depth_anything", "DepthAnythingForDepthEstimation", "DepthAnythingConfig", 32, task="depth", **DEPTH),
    image("zoedepth", "ZoeDepthForDepthEstimation", "ZoeDepthConfig", 32, task="depth", **ZOEDEPTH),
    image("upernet", "UperNetForSemanticSegmentation", "UperNetConfig", 64, task="segmentation", **UPERNET),
    image(
        "vit_mae",
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        32,
        task="pretraining",
        also={"noise": lambda batch, size: torch.rand(batch, 16)},
        **MAE,
    ),
    image(
        "vit_masked",
        "ViTForMaskedImageModeling",
        "ViTConfig",
        32,
        task="pretraining",
        also={"bool_masked_pos": lambda batch, size: torch.ones(batch, 16).bool()},
        encoder_stride=8,
        **PATCHES,
        **ViT,
    ),
    image("vitpose", "VitPoseForPoseEstimation", "VitPoseConfig", 32, task="key points", **VITPOSE),
    image("vitmatte", "VitMatteForImageMatting", "VitMatteConfig", 32, task="matting", channels=4, **VITMATTE),
    by_example(
        image("superpoint", "SuperPointForKeypointDetection", "SuperPointConfig", 64, task="key points", **SUPERPOINT)
    ),
    image(
        "seggpt",
        "SegGptModel",
        "SegGptConfig",
        32,
        task="segmentation",
        also=dict.fromkeys(
            ("prompt_pixel_values", "prompt_masks"), lambda batch, size: torch.randn(batch, 3, size, size)
        ),
        **SEGGPT,
    ),
)
