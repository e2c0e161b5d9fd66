"""Architectures of transformers over images and text, small, with random weights."""

from __future__ import annotations

from benchmarks.images import ENCODER_DECODER, PATCHES, THIN, ViT
from benchmarks.signals import Given, architecture, floats, ids, ones, with_image_tokens

TEXT = {**ViT, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
EYES = {**ViT, **PATCHES}
WIDE = {"hidden_size": 64}
BOTH = {"vision_config": EYES, "text_config": TEXT, "projection_dim": 16}
PIXELS = {"pixel_values": floats("batch", 3, 32, 32)}
WORDS = {"input_ids": ids(99, "batch", "sequence"), "attention_mask": ones("batch", "sequence")}
PAIRS = {**WORDS, **PIXELS}
PAGE = {**WORDS, "bbox": Given(("batch", "sequence", 4), "order")}
TINY_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1, 1], "num_heads": [2, 2, 2]}
GROUNDING = {
    "backbone_config": ("SwinConfig", {**TINY_SWIN, "window_size": 4, "out_features": ["stage2", "stage3"]}),
    "text_config": ("BertConfig", TEXT),
    "d_model": 32,
    **ENCODER_DECODER,
    "encoder_layers": 1,
    "num_queries": 6,
    "num_feature_levels": 3,
    "encoder_n_points": 2,
    "decoder_n_points": 2,
    "max_text_len": 32,
}
QFORMER = {**TEXT, "encoder_hidden_size": 32}
BLIP2 = {
    "vision_config": EYES,
    "qformer_config": QFORMER,
    "text_config": ("OPTConfig", {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "use_cache": False}),
    "num_query_tokens": 4,
    "image_token_index": 98,
}
PERCEIVER = {
    "num_latents": 8,
    "d_latents": 32,
    "d_model": 48,
    "num_blocks": 1,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "image_size": 16,
}
LXMERT = {
    **TEXT,
    "l_layers": 1,
    "x_layers": 1,
    "r_layers": 1,
    "visual_feat_dim": 8,
    "num_qa_labels": 5,
    "num_object_labels": 5,
    "num_attr_labels": 5,
}
UNMASKED = {"input_ids": ids(98, "batch", "sequence"), **PIXELS}
LLAMA = ("LlamaConfig", DECODER)

ARCHITECTURES = (
    architecture("clip", "embedding", "CLIPModel", ("CLIPConfig", BOTH), PAIRS, dtypes=("float32", "float16")),
    architecture("siglip", "embedding", "SiglipModel", ("SiglipConfig", BOTH), PAIRS),
    architecture("chinese_clip", "embedding", "ChineseCLIPModel", ("ChineseCLIPConfig", BOTH), PAIRS),
    architecture(
        "altclip",
        "embedding",
        "AltCLIPModel",
        ("AltCLIPConfig", {**BOTH, "text_config": {**TEXT, "project_dim": 16}}),
        PAIRS,
    ),
    architecture(
        "align",
        "embedding",
        "AlignModel",
        (
            "AlignConfig",
            {
                "vision_config": {
                    "image_size": 32,
                    "width_coefficient": 0.25,
                    "depth_coefficient": 0.5,
                    "hidden_dim": 80,
                    "num_block_repeats": [1] * 7,
                },
                "text_config": TEXT,
                "projection_dim": 80,
            },
        ),
        PAIRS,
    ),
    architecture(
        "clipseg",
        "segmentation",
        "CLIPSegForImageSegmentation",
        (
            "CLIPSegConfig",
            {
                **BOTH,
                "reduce_dim": 16,
                "extract_layers": [0, 1],
                "decoder_num_attention_heads": 2,
                "decoder_intermediate_size": 32,
            },
        ),
        PAIRS,
    ),
    architecture(
        "groupvit",
        "segmentation",
        "GroupViTModel",
        (
            "GroupViTConfig",
            {
                "text_config": TEXT,
                "vision_config": {
                    **EYES,
                    "depths": [1, 1, 1],
                    "num_group_tokens": [8, 4, 0],
                    "num_output_groups": [8, 4, 4],
                },
                "projection_dim": 16,
                "projection_intermediate_dim": 32,
            },
        ),
        PAIRS,
    ),
    architecture(
        "owlvit",
        "detection",
        "OwlViTForObjectDetection",
        ("OwlViTConfig", {**BOTH, "projection_dim": 32}),
        {"input_ids": ids(99, 4, 8), "pixel_values": floats(2, 3, 32, 32)},
    ),
    architecture(
        "owlv2",
        "detection",
        "Owlv2ForObjectDetection",
        ("Owlv2Config", {**BOTH, "projection_dim": 32}),
        {"input_ids": ids(99, 4, 8), "pixel_values": floats(2, 3, 32, 32)},
    ),
    architecture(
        "grounding_dino",
        "detection",
        "GroundingDinoForObjectDetection",
        ("GroundingDinoConfig", GROUNDING),
        {"input_ids": ids(99, 2, 8), "pixel_values": floats(2, 3, 64, 64)},
    ),
    architecture(
        "blip",
        "captions",
        "BlipForConditionalGeneration",
        ("BlipConfig", {**BOTH, "text_config": {**TEXT, "encoder_hidden_size": 32, "use_cache": False}}),
        PAIRS,
    ),
    architecture(
        "blip_retrieval",
        "embedding",
        "BlipForImageTextRetrieval",
        ("BlipConfig", {**BOTH, "image_text_hidden_size": 16, "text_config": {**TEXT, "encoder_hidden_size": 32}}),
        PAIRS,
    ),
    architecture(
        "blip2",
        "captions",
        "Blip2ForConditionalGeneration",
        ("Blip2Config", BLIP2),
        UNMASKED,
        wrap=with_image_tokens(4),
    ),
    architecture(
        "git", "captions", "GitForCausalLM", ("GitConfig", {**TEXT, "vision_config": EYES, "use_cache": False}), PAIRS
    ),
    architecture(
        "llava",
        "chat",
        "LlavaForConditionalGeneration",
        ("LlavaConfig", {"vision_config": ("CLIPVisionConfig", EYES), "text_config": LLAMA, "image_token_index": 98}),
        UNMASKED,
        wrap=with_image_tokens(16),
    ),
    architecture(
        "gemma3",
        "chat",
        "Gemma3ForConditionalGeneration",
        (
            "Gemma3Config",
            {
                "vision_config": ("SiglipVisionConfig", EYES),
                "text_config": ("Gemma3TextConfig", DECODER),
                "image_token_index": 98,
                "mm_tokens_per_image": 4,
            },
        ),
        UNMASKED,
        wrap=with_image_tokens(4),
    ),
    architecture("vilt", "answers", "ViltModel", ("ViltConfig", {**TEXT, **PATCHES}), PAIRS),
    architecture(
        "visual_bert",
        "answers",
        "VisualBertModel",
        ("VisualBertConfig", {**TEXT, "visual_embedding_dim": 8}),
        {**WORDS, "visual_embeds": floats("batch", 6, 8)},
    ),
    architecture(
        "lxmert",
        "answers",
        "LxmertModel",
        ("LxmertConfig", LXMERT),
        {**WORDS, "visual_feats": floats("batch", 6, 8), "visual_pos": floats("batch", 6, 4)},
    ),
    architecture(
        "flava",
        "embedding",
        "FlavaModel",
        (
            "FlavaConfig",
            {
                "text_config": TEXT,
                "image_config": EYES,
                "multimodal_config": ViT,
                "hidden_size": 32,
                "projection_dim": 16,
            },
        ),
        PAIRS,
    ),
    architecture(
        "bridgetower",
        "embedding",
        "BridgeTowerModel",
        (
            "BridgeTowerConfig",
            {**ViT, **WIDE, "vision_config": {**PATCHES, **THIN, **WIDE}, "text_config": {**TEXT, **WIDE}},
        ),
        {**PAIRS, "pixel_mask": ones("batch", 32, 32)},
    ),
    architecture("layoutlm", "documents", "LayoutLMForTokenClassification", ("LayoutLMConfig", TEXT), PAGE),
    architecture(
        "layoutlmv3",
        "documents",
        "LayoutLMv3ForTokenClassification",
        (
            "LayoutLMv3Config",
            {
                **TEXT,
                "input_size": 32,
                "patch_size": 8,
                "coordinate_size": 5,
                "shape_size": 6,
                "rel_pos_bins": 8,
                "max_rel_pos": 16,
                "rel_2d_pos_bins": 8,
                "max_rel_2d_pos": 16,
            },
        ),
        {**PAGE, **PIXELS},
    ),
    architecture(
        "bros",
        "documents",
        "BrosModel",
        ("BrosConfig", {**TEXT, **WIDE}),
        {**WORDS, "bbox": floats("batch", "sequence", 8)},
    ),
    architecture(
        "udop_encoder",
        "documents",
        "UdopEncoderModel",
        (
            "UdopConfig",
            {
                "vocab_size": 99,
                "d_model": 32,
                "d_kv": 8,
                "d_ff": 48,
                "num_layers": 2,
                "num_heads": 4,
                **PATCHES,
                "max_2d_position_embeddings": 64,
            },
        ),
        {**WORDS, "bbox": floats("batch", "sequence", 4), **PIXELS},
    ),
    architecture(
        "mgp_str",
        "recognition",
        "MgpstrForSceneTextRecognition",
        (
            "MgpstrConfig",
            {
                **THIN,
                "image_size": [16, 32],
                "patch_size": 4,
                "max_token_length": 5,
                "num_character_labels": 9,
                "num_bpe_labels": 9,
                "num_wordpiece_labels": 9,
                "mlp_ratio": 2.0,
            },
        ),
        {"pixel_values": floats("batch", 3, 16, 32)},
    ),
    architecture(
        "trocr",
        "recognition",
        "VisionEncoderDecoderModel",
        (
            "VisionEncoderDecoderConfig",
            {
                "encoder": {**EYES, "model_type": "vit"},
                "decoder": {
                    "model_type": "trocr",
                    "vocab_size": 99,
                    "d_model": 32,
                    "decoder_layers": 2,
                    "decoder_attention_heads": 4,
                    "decoder_ffn_dim": 48,
                    "use_cache": False,
                    "max_position_embeddings": 64,
                },
            },
        ),
        {**PIXELS, "decoder_input_ids": ids(99, "batch", "target")},
    ),
    architecture(
        "perceiver_text",
        "text",
        "PerceiverForMaskedLM",
        ("PerceiverConfig", PERCEIVER),
        {"inputs": ids(99, "batch", 16)},
    ),
    architecture(
        "perceiver_learned",
        "classification",
        "PerceiverForImageClassificationLearned",
        ("PerceiverConfig", PERCEIVER),
        {"inputs": floats("batch", 3, 16, 16)},
    ),
    architecture(
        "perceiver_fourier",
        "classification",
        "PerceiverForImageClassificationFourier",
        ("PerceiverConfig", {**PERCEIVER, "image_size": 224, "num_cross_attention_heads": 1}),
        {"inputs": floats("batch", 3, 224, 224)},
    ),
    architecture(
        "perceiver_convolution",
        "classification",
        "PerceiverForImageClassificationConvProcessing",
        ("PerceiverConfig", {**PERCEIVER, "num_cross_attention_heads": 1}),
        {"inputs": floats("batch", 3, 224, 224)},
    ),
)
