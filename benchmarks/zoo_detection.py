"""Vision architectures of transformers, small, with random weights: what finds objects and cuts them out."""

from __future__ import annotations

from benchmarks.images import ENCODER_DECODER, STAGE_NAMES, STAGES, THIN, ViT, image

RESNET = {"embedding_size": 8, "out_features": ["stage4"], **STAGES}
RESNETS = {**RESNET, "out_features": ["stage2", "stage3", "stage4"]}
DETR = {
    "backbone_config": ("ResNetConfig", RESNET),
    "d_model": 32,
    **ENCODER_DECODER,
    "num_queries": 6,
}
DEFORMABLE = {
    **DETR,
    "backbone_config": ("ResNetConfig", RESNETS),
    "encoder_n_points": 2,
    "decoder_n_points": 2,
    "num_feature_levels": 3,
}
TWO_STAGES = {"two_stage": True, "two_stage_num_proposals": 6, "with_box_refine": True}
SAM = {
    **THIN,
    "image_size": 32,
    "patch_size": 8,
    "output_channels": 16,
    "window_size": 3,
    "global_attn_indexes": [1],
    "mlp_dim": 48,
}
RT_DETR = {
    "backbone_config": ("RTDetrResNetConfig", {**RESNETS, "depths": [1, 1, 1, 1]}),
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [24, 32, 40],
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "d_model": 32,
    "num_queries": 6,
    "decoder_in_channels": [32, 32, 32],
    "decoder_ffn_dim": 48,
    "decoder_n_points": 2,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "hidden_expansion": 0.5,
}
LW_DETR = {
    "backbone_config": (
        "LwDetrViTConfig",
        {
            **THIN,
            "image_size": 64,
            "pretrain_image_size": 64,
            "num_windows": 4,
            "window_block_indices": [0],
            "out_indices": [1],
        },
    ),
    "projector_scale_factors": [1.0],
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_ffn_dim": 48,
    "decoder_self_attention_heads": 4,
    "decoder_cross_attention_heads": 4,
    "decoder_n_points": 2,
    "num_queries": 6,
    "group_detr": 2,
}
SWIN = (
    "SwinConfig",
    {
        "image_size": 64,
        "embed_dim": 16,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 2, 4],
        "window_size": 4,
        "out_features": STAGE_NAMES,
    },
)
MASKFORMER = {
    "backbone_config": SWIN,
    "decoder_config": ("DetrConfig", DETR),
    "fpn_feature_size": 32,
    "mask_feature_size": 32,
}
MASK2FORMER = {
    "backbone_config": SWIN,
    "feature_size": 32,
    "mask_feature_size": 32,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "num_attention_heads": 4,
    "dim_feedforward": 24,
    "num_queries": 6,
}
SAM2 = {
    "backbone_config": (
        "Sam2HieraDetConfig",
        {
            "hidden_size": 8,
            "image_size": [64, 64],
            "blocks_per_stage": [1, 1, 2, 1],
            "embed_dim_per_stage": [8, 16, 24, 32],
            "num_attention_heads_per_stage": [1, 2, 2, 4],
            "window_size_per_stage": [4, 2, 4, 2],
            "global_attention_blocks": [3],
        },
    ),
    "backbone_channel_list": [32, 24, 16, 8],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "fpn_hidden_size": 16,
}

ARCHITECTURES = (
    image(
        "yolos",
        "YolosForObjectDetection",
        "YolosConfig",
        32,
        task="detection",
        image_size=[32, 32],
        patch_size=8,
        num_detection_tokens=5,
        **ViT,
    ),
    image(
        "detr", "DetrForObjectDetection", "DetrConfig", 64, 32, task="detection", dtypes=("float32", "float16"), **DETR
    ),
    image(
        "detr_segmentation",
        "DetrForSegmentation",
        "DetrConfig",
        64,
        task="segmentation",
        **{
            **DETR,
            "d_model": 64,
            "encoder_attention_heads": 8,
            "backbone_config": ("ResNetConfig", {**RESNET, "out_features": STAGE_NAMES}),
        },
    ),
    image(
        "conditional_detr", "ConditionalDetrForObjectDetection", "ConditionalDetrConfig", 64, task="detection", **DETR
    ),
    image(
        "dab_detr", "DabDetrForObjectDetection", "DabDetrConfig", 64, task="detection", **{**DETR, "hidden_size": 32}
    ),
    image(
        "table_transformer",
        "TableTransformerForObjectDetection",
        "TableTransformerConfig",
        64,
        task="detection",
        **DETR,
    ),
    image(
        "deformable_detr",
        "DeformableDetrForObjectDetection",
        "DeformableDetrConfig",
        64,
        task="detection",
        **DEFORMABLE,
    ),
    image(
        "deformable_detr_two_stage",
        "DeformableDetrForObjectDetection",
        "DeformableDetrConfig",
        64,
        task="detection",
        **DEFORMABLE,
        **TWO_STAGES,
    ),
    image("rt_detr", "RTDetrForObjectDetection", "RTDetrConfig", 64, task="detection", **RT_DETR),
    image("rt_detr_v2", "RTDetrV2ForObjectDetection", "RTDetrV2Config", 64, task="detection", **RT_DETR),
    image("d_fine", "DFineForObjectDetection", "DFineConfig", 64, task="detection", **RT_DETR),
    image("lw_detr", "LwDetrForObjectDetection", "LwDetrConfig", 64, task="detection", **LW_DETR),
    image("maskformer", "MaskFormerModel", "MaskFormerConfig", 64, task="segmentation", **MASKFORMER),
    image(
        "mask2former",
        "Mask2FormerModel",
        "Mask2FormerConfig",
        64,
        task="segmentation",
        **MASK2FORMER,
    ),
    image("sam_vision", "SamVisionModel", "SamVisionConfig", 32, task="segmentation", **SAM),
    image("sam2_vision", "Sam2VisionModel", "Sam2VisionConfig", 64, task="segmentation", **SAM2),
)
