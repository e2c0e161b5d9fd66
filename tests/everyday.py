"""What ``make test`` leaves to ``make test-all``, and why: the everyday's is to take at most 0.4 of its time.

Every property runs every day, with 4 calls instead of 15 (Hypothesis's profile ``quick``): of the 33 faults of
``tests/meta/mutants.py`` 4 calls find 31, 3 find 29 and 15 find all. Every other test runs with two of its values, if
it has more (`FEW`). Left out are tests of the tests, what is measured rather than checked, and what starts processes.
``make gpu-test``, which is to take 8 minutes with 16 cores, leaves out likewise what ``make gpu-test-all`` has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parent
PROCESSES = "starts processes, each of which imports torch"

HEADS: Final = (
    *("classification-bit_same", "classification-dinov2_registers", "classification-patchtst_classification"),
    *("classification-pvt_v2_linear", "classification-siglip_vision", "decoder-gemma3_text"),
    *("decoder-modernbert-decoder", "detection-deformable_detr_two_stage", "embedding-blip_retrieval"),
    *("forecast-patchtsmixer_mixed", "recognition-wav2vec2_conformer_rotary", "recognition-wav2vec2_mask"),
    *("recognition-wav2vec2_stable", "regression-patchtst_regression", "segmentation-beit_segmentation"),
    *("segmentation-detr_segmentation", "segmentation-dpt_segmentation", "segmentation-mobilenet_v2_segmentation"),
    *("segmentation-mobilevit_segmentation", "speaker-wav2vec2_xvector"),
    *("classification-perceiver_convolution", "classification-perceiver_learned", "decode-step-gemma2"),
    *("decode-step-gpt2", "decode-step-gpt_neox", "decode-step-opt", "decode-step-phi", "decode-step-qwen3"),
    *("classification-mobilevit", "decoder-qwen3_next", "decoder-zamba", "detection-conditional_detr"),
    *("detection-rt_detr_v2", "segmentation-maskformer"),
)
"""Rows of the zoo that are another head, or another option, of an architecture that is there, or long and like one that
is (mobilevitv2, the families of test_tokens_gpu, detr, rt_detr, mask2former)."""

DIFFUSION: Final = (
    *("image-sdxl_unet", "image-sd_unet_controlled", "control-controlnet", "control-t2i_adapter", "image-ddpm_unet"),
    *("image-stable_cascade_unet", "image-sd3_5", "image-flux2", "image-chroma", "image-qwen_image", "image-pixart"),
    *("image-sana", "image-hunyuan_dit", "image-auraflow", "image-lumina2", "image-z_image", "image-cogview4"),
    *("image-dit", "image-omnigen", "prior-prior_transformer", "video-svd_unet", "video-animatediff_unet"),
    *("video-wan_image", "video-cogvideox", "video-cogvideox_rotary", "video-ltx_video", "video-hunyuan_video"),
    *("video-mochi", "video-cosmos", "sound-stable_audio", "autoencoder-autoencoder_kl"),
    *("encoder-of-images-autoencoder_kl_encoder", "autoencoder-autoencoder_tiny", "autoencoder-autoencoder_dc"),
    *("autoencoder-vq", "decoder-of-videos-svd_decoder", "decoder-of-videos-wan_decoder"),
    *("decoder-of-videos-ltx_video_decoder", "codec-oobleck"),
)
"""Rows of diffusers but for five: every day has a UNet, two transformers of images, one of videos, and a decoder."""

LEFT_OUT: Final[Mapping[str, str]] = {
    "tests/meta": "tests of the tests: faults that the others have to find",
    "tests/benchmarks/test_capture.py": "measures seconds",
    "tests/artifact/test_elsewhere.py": "each starts a process that loads a program without the model's code",
    "tests/gpu/test_fused_gpu.py": "random programs of what TensorRT fuses: test_fuzz_gpu has others",
    "tests/build/test_kernels": "looks at the kernels of plans, which change with TensorRT and not with us",
    **{f"tests/gpu/test_zoo_gpu.py::test_agrees_with_eager[{row}-": "another head or option" for row in HEADS},
    **{f"tests/gpu/test_zoo_gpu.py::test_agrees_with_eager[{row}-": "five others are there" for row in DIFFUSION},
    "tests/gpu/test_profile_gpu.py::test_the_sum": "measures, and so nothing may run beside it",
    "tests/gpu/test_attribute_pairs.py": "pairs of layers, which change with TensorRT and not with us",
    "tests/docs/test_demo.py": "ResNet-50 and BERT-base at full size",
    "tests/capture/test_work.py": "counts what captures cost",
    "tests/partitioning/test_models.py": "measures how long cutting takes, and full-size models",
    "tests/quantized/test_cells.py::test_the_page_has_the_table": "makes the whole table anew",
    "tests/docs/test_site.py::test_the_site_builds": "builds the whole site",
    "tests/docs/test_release.py": PROCESSES,
    "tests/benchmarks/test_together.py": PROCESSES,
    "tests/benchmarks/test_gpu_tests.py": PROCESSES,
    "tests/benchmarks/test_profiles.py": "compiles what a benchmark compiles",
    "tests/benchmarks/test_tokens.py": "compiles what a benchmark compiles",
    "tests/compat/test_generation.py::test_pieces": PROCESSES,
    "tests/benchmarks/test_replay.py": "records what a benchmark records",
    "tests/artifact/test_engine_store.py::test_processes": PROCESSES,
    "tests/artifact/test_engine_store.py::test_a_kill": PROCESSES,
    "tests/runtime/test_engine_cache.py::test_several_processes": PROCESSES,
    "tests/stages/test_cluster.py": PROCESSES,
    "tests/test_use.py::test_two_processes": PROCESSES,
    "tests/verification/test_bisect.py::test_the_script": PROCESSES,
    "tests/artifact/test_engine_key.py::test_many_pairs": "more pairs of the programs that another test has",
    "tests/compat/test_diffusers.py::test_torch_compile": "compiles a model three times",
    "tests/converters/test_linalg.py::test_what_torch_composes[aten.linalg_slogdet": "det is made of the same",
    "tests/converters/test_properties.py::test_dynamic[aten.grid_sampler_2d": "grid_sampler is the same",
    "tests/converters/test_reached.py::test_no_pass_swallows": "all passes beside all operators that they know",
    "tests/compat/test_generation.py::test_one_head_of_keys_builds": "builds 32 heads, which takes long",
    "tests/compat/test_generation.py::test_two_rows_at_most": "a model with experts; one has more rows",
    "tests/artifact/test_verify_loaded.py::test_an_operator_that_is_not_there": PROCESSES,
    "tests/compat/test_generation.py::test_tokens_are_eagers_with_few": "compiles one more model; others are there",
    "tests/compat/test_generation.py::test_distributions_check_as_before": "compiles one more model; others are there",
    "tests/viewing/test_browser.py::test_fitting": "draws one more program; others are drawn",
    "tests/compat/test_towers.py::test_drafts": "a prompt of the same model is there",
    "tests/compat/test_towers.py::test_text_of_a_model": "text without an example is there",
    "tests/compat/test_towers.py::test_images_in_more_tiles": "several images are there",
    "tests/compat/test_sounds.py::test_a_model_that_hears": "its tower alone is there",
    "tests/compat/test_packed.py::test_images_in_one_tensor": "its tower alone is there",
    "tests/compat/test_packed.py::test_a_video": "its tower alone is there",
    "tests/compat/test_packed.py::test_a_larger": "a model of every size is there",
    "tests/compat/test_packed.py::test_a_tower_that_reads": "other towers that have none are there",
    "tests/compat/test_packed.py::test_engines": "each grid's are there (test_towers)",
    "tests/compat/test_embeddings.py::test_beams": "beams are there of other prompts",
    "tests/compat/test_embeddings.py::test_blip_2": "a model around a language model is there",
    "tests/compat/test_seeing.py::test_a_long_prompt": "compiles two models for prompts of several calls",
    "tests/compat/test_seeing.py::test_a_tower_that_cannot": "compiles a model twice for a warning",
    "tests/compat/test_assisted.py::test_a_loop_by_hand_behind": "a loop by hand is there without an encoder",
    "tests/compat/test_encoders.py::test_a_mask_that_hides_sound": "compiles an encoder of sound for one error",
    "tests/export_fixes/test_flex_attention.py::test_a_decoder_of_transformers": "a model; the forms are there",
    "tests/shapes/test_guards.py::test_programs_print_alike": PROCESSES,
    "tests/cli/test_cli.py::test_as_a_command": PROCESSES,
    "tests/cli/test_misuse.py::test_output_that_cannot_be_written": PROCESSES,
    "tests/runtime/test_inside_torch.py::test_an_export_that_holds_one_is_a_file": PROCESSES,
    "tests/test_trt.py::test_the_environment_chooses_the_bindings": PROCESSES,
    "tests/artifact/test_damage.py::test_text_that_is_longer": "writes more than it keeps",
    "tests/distributed/test_sharded.py": PROCESSES,
    "tests/first_hour/test_messages.py::test_the_snippet": PROCESSES,
    "tests/benchmarks/test_suites.py::test_tests_of_models": PROCESSES,
    "tests/artifact/test_hostile_files.py::test_files_changed_by": "random files; written ones are there",
    "tests/converters/test_linalg.py::test_what_torch_composes[aten.linalg_solve": "det is made of the same",
    "tests/compat/test_towers.py::test_each_grid": "several images are there",
    "tests/compat/test_towers.py::test_ids_that": "text without an example is there",
    "tests/compat/test_towers.py::test_prompts_of_text": "text without an example is there",
    "tests/compat/test_generation.py::test_layers_of_one": "builds; equal networks are built once (test_build_once)",
    "tests/compat/test_generation.py::test_one_row_where": "prompts of all sizes and batches are there",
    "tests/compat/test_states.py::test_layers_of_one": "builds; equal networks are built once (test_build_once)",
    "tests/compat/test_states.py::test_states_are_float32": "tokens of a model with states are there",
    "tests/compat/test_embeddings.py::test_what_it_is": "compiles two models for their errors",
    "tests/compat/test_seeing.py::test_another_turn": "a prompt of the same model is there",
    "tests/compat/test_seeing.py::test_beams": "beams are there of other prompts",
    "tests/compat/test_assisted.py::test_a_compiled_model": "drafts of eager models are there",
    "tests/compat/test_beams.py::test_whisper": "beams are there of other models",
    "tests/compat/test_saved.py::test_a_file_and_a_folder_generate_the_same_tokens[encoder": "a decoder is there",
    "tests/compat/test_saved.py::test_what_cannot_be_pickled_says_so[encoder": "a decoder is there",
    "tests/compat/test_seeing.py::test_other_images": "sizes that run in PyTorch are there (test_towers)",
    "tests/cli/test_generate.py::test_beams": "beams are there without the command",
    "tests/viewing/test_browser.py::test_a_decoder": "draws one more program; others are drawn",
    "tests/viewing/test_browser.py::test_five_thousand": "measures seconds",
    "tests/viewing/test_browser.py::test_one_flat_list": "measures seconds",
    "tests/compat/test_diffusers.py::test_images_of_parts": "parts are saved without diffusers too (test_saved)",
    "tests/compat/test_seeing.py::test_engines_have": "tokens of the same model are there",
    "tests/compat/test_seeing.py::test_a_model_that_sees_is_not": "compiles a model for one error",
    "tests/compat/test_seeing.py::test_an_example": "prompts of the same model are there",
    "tests/compat/test_seeing.py::test_what_is_drafted": "drafts and images are there, each alone",
    "tests/compat/test_generation.py::test_the_cache_is_given": "tokens of the same model are there",
    "tests/compat/test_decoding.py::test_a_cache_may_be_full": "prompts of all sizes are there",
    "tests/compat/test_towers.py::test_sizes_that_no_program": "several images are there",
    "tests/compat/test_packed.py::test_images_that_are_apart": "images of every size are there",
    "tests/compat/test_packed.py::test_towers_agree": "images of every size are there",
    "tests/stages/test_build.py::test_an_engine_is_the_same": PROCESSES,
    "tests/cli/test_misuse.py::test_an_interrupt": PROCESSES,
    "tests/benchmarks/test_benchmarks.py::test_a_process_that_says": PROCESSES,
    "tests/benchmarks/test_benchmarks.py::test_a_chain": "compiles what a benchmark compiles",
    "tests/benchmarks/test_real_models.py::test_a_model_is_made": "models of full size",
    "tests/verification/test_loading.py::test_what_runs_in_pytorch_stays": "verify and load are there, each alone",
    "tests/compat/test_generation.py::test_logits_are_verified": "tokens, and verify, are there, each alone",
    "tests/compat/test_states.py::test_sequences_begin": "tokens of a model with states are there",
    "tests/compat/test_states.py::test_a_prompt_takes": "prompts of several calls are there (test_prompts)",
    "tests/benchmarks/test_real.py::test_a_program_for_all": "compiles what a benchmark compiles",
    "tests/viewing/test_browser.py::test_errors_of_verify": "draws one more program; others are drawn",
    "tests/viewing/test_view.py::test_layers_belong": "draws two more programs; others are drawn",
}
"""By the beginning of a test's path."""

FEW: Final = 2
"""So many values of a test that has more, spread evenly; but of `WHOLE` all, and of `ONE` one."""

WHOLE: Final = ("tests/converters/test_properties.py", "tests/gpu/")
"""Every operator is tested every day. GPU tests have `SAMPLED` and `IN_TURN`."""

ONE: Final = (
    *("tests/models/", "tests/test_zoo_devices.py", "tests/compat/test_generation.py", "tests/compat/test_prompts.py"),
    *("tests/compat/test_assisted.py", "tests/compat/test_beams.py", "tests/compat/test_encoders.py"),
    *("tests/compat/test_diffusers.py", "tests/compat/test_seeing.py", "tests/compat/test_states.py"),
    *("tests/compat/test_towers.py", "tests/compat/test_embeddings.py", "tests/compat/test_packed.py"),
    *("tests/compat/test_sounds.py", "tests/export_fixes/test_restore_model_state.py"),
    *("tests/export_fixes/test_call_recorder.py", "tests/export_fixes/test_padded.py"),
    *("tests/export_fixes/test_packed_sequence.py", "tests/export_fixes/test_constant_inputs.py"),
    *("tests/export_fixes/test_device.py", "tests/stages/test_control_flow.py", "tests/stages/test_improve.py"),
    *("tests/capture/test_dynamo_graph.py", "tests/quantized/test_merge.py"),
    *("tests/export_fixes/test_flex_attention.py", "tests/profiling/test_kernels.py", "tests/stages/test_autocast.py"),
    *("tests/benchmarks/test_emulator.py", "tests/improvements/test_push_down_slices.py", "tests/testing/test_fuzz.py"),
    "tests/stages/test_complex.py",
)
"""Files whose values are models and the like, of seconds each."""

SAMPLED: Final[Mapping[str, int]] = {
    "tests/gpu/test_agreement.py": 16,
    "tests/gpu/test_attention_gpu.py": 8,
    "tests/gpu/test_bfloat16_gpu.py": 8,
    "tests/gpu/test_captured_gpu.py": 6,
    "tests/gpu/test_control_flow_gpu.py": 4,
    "tests/gpu/test_device_gpu.py::test_the_graph": 4,
    "tests/gpu/test_expanded_gpu.py": 4,
    "tests/gpu/test_in_turn_gpu.py": 3,
    "tests/gpu/test_linalg_gpu.py": 4,
    "tests/gpu/test_models_gpu.py::test_agrees": 5,
    "tests/gpu/test_models_gpu.py::test_an_engine_built_without_a_gpu": 2,
    "tests/gpu/test_models_shapes_gpu.py": 2,
    "tests/gpu/test_outside_gpu.py::test_each_call": 3,
    "tests/gpu/test_packed_gpu.py": 2,
    "tests/gpu/test_properties_gpu.py": 8,
    "tests/gpu/test_quantized_gpu.py": 4,
    "tests/gpu/test_rows_gpu.py": 6,
    "tests/gpu/test_runtime_gpu.py::test_architectures": 6,
    "tests/gpu/test_strided_gpu.py": 3,
    "tests/gpu/test_tokens_gpu.py::test_logits": 12,
    "tests/gpu/test_tokens_gpu.py::test_scores": 6,
    "tests/gpu/test_verify_gpu.py::test_example": 4,
    "tests/gpu/test_written_in_gpu.py": 2,
    "tests/gpu/test_wrong_kernels_gpu.py": 4,
}
"""One test in so many, always the same, of those whose path begins so."""

IN_TURN: Final[Mapping[str, str]] = {
    "tests/gpu/test_zoo_gpu.py": "dtype",
    "tests/gpu/test_in_place_gpu.py": "dtype",
    "tests/gpu/test_tokens_gpu.py::test_logits": "dtype",
    "tests/gpu/test_models_gpu.py": "dtype",
    "tests/gpu/test_real_gpu.py": "dtype",
    "tests/gpu/test_models_shapes_gpu.py": "dtype",
    "tests/gpu/test_verify_gpu.py::test_example_models": "dtype",
    "tests/gpu/test_attention_gpu.py": "dtype",
    "tests/gpu/test_bfloat16_gpu.py": "dtype",
    "tests/gpu/test_control_flow_gpu.py": "dtype",
    "tests/gpu/test_expanded_gpu.py": "dtype",
    "tests/gpu/test_packed_gpu.py": "dtype",
    "tests/gpu/test_written_in_gpu.py": "dtype",
    "tests/gpu/test_linalg_gpu.py::test_as_exact": "size",
    "tests/gpu/test_wrong_kernels_gpu.py::test_agrees": "dtype",
    "tests/gpu/test_wrong_kernels_gpu.py::test_products": "dtype",
    "tests/gpu/test_device_gpu.py::test_the_graph": "gpu",
}
"""A parameter of the tests whose path begins so: the others' values are tested with one of its values each, in turn,
but for what `SAMPLED` leaves out."""


LONG: Final = (
    "tests/gpu/test_real_gpu.py",
    "tests/gpu/test_zoo_gpu.py",
    "tests/gpu/test_fuzz_gpu.py",
    "tests/gpu/test_models_gpu.py",
    "tests/gpu/test_tokens_gpu.py",
    "tests/gpu/test_verify_gpu.py",
    "tests/gpu/test_models_shapes_gpu.py",
)
"""Tests of 7 seconds or more each, by the beginning of their paths. They begin first, so that none is left to one
process when the others have ended (``--maxschedchunk 1``: a process gets a test when it asks for one)."""


def is_long(nodeid: str) -> bool:
    """Whether a test is to begin before the others."""
    return nodeid.replace("\\", "/").startswith(LONG)


def is_slow(nodeid: str) -> bool:
    """Whether a test is left to ``make test-all``."""
    nodeid = nodeid.replace("\\", "/")
    if any(nodeid.startswith(path) for path in LEFT_OUT):
        return True
    every = next((count for path, count in SAMPLED.items() if nodeid.startswith(path)), 1)
    return zlib.crc32(nodeid.encode()) % every != 0


def beyond_a_few(items: Sequence[Any]) -> Iterator[Any]:
    """The tests (``pytest.Item``) of more than `FEW` values that are left to ``make test-all``."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        if not item.nodeid.startswith(WHOLE):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, group in groups.items():
        few = 1 if test.startswith(ONE) else FEW
        kept = {number * len(group) // few for number in range(few)}
        yield from (item for place, item in enumerate(group) if place not in kept)


def not_their_turn(items: Sequence[Any]) -> Iterator[Any]:
    """The tests (``pytest.Item``) of `IN_TURN` that are left to ``make gpu-test-all``."""
    groups: dict[str, dict[tuple[Any, ...], list[Any]]] = {}
    for item in items:
        name = next((name for path, name in IN_TURN.items() if item.nodeid.startswith(path)), "")
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if name in given:
            test = item.nodeid.partition("[")[0]
            others = tuple((key, str(value)) for key, value in given.items() if key != name)
            groups.setdefault(test, {}).setdefault(others, []).append(item)
    for group in groups.values():
        for number, alike in enumerate(group.values()):
            turn = number + number // len(alike)  # so that it is not always the same beside values of as many others
            yield from (item for place, item in enumerate(alike) if (turn - place) % len(alike))
