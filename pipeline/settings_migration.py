"""Tables of what replaces Torch-TensorRT's settings, and settings of this package that were renamed."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_TYPED = (
    'networks are strongly typed, so precision is the model\'s: cast it, or pass precision="float16" to '
    "pipeline.compile or pipeline.default for mixed precision"
)
_AUTOCAST = (
    'mixed precision is a stage: pass precision="float16", or insert pipeline.autocast(torch.float16, exclude=(…)) '
    'before="decompose"'
)
_PRECISION = (
    'pass precision="float16" to pipeline.compile or pipeline.default for mixed precision; pipeline.quantize makes '
    "weights int8, int4 or fp8"
)
_LOG = 'logging.getLogger("pipeline").setLevel(logging.DEBUG) shows more, and observed_by(…) every record'
_TIMING = "TensorRT-RTX has no timings to keep; cache_built_engines keeps engines, runtime_cache the kernels"
_STORE = 'a store of one\'s own is a stage: pipeline.default().replace("build", pipeline.cached(store))'
_WHERE = "engines are loaded on the current CUDA device; compute_capabilities says what they are built for"
_REFIT = "immutable_weights=False builds engines that can be refitted"
_PYTHON = "there is one runtime, in Python"
_ENGINES = "the partition stage can be swapped: max_engines, pipeline.by_submodule"
_FAILURES = "an engine that cannot be built is an error; torch_executed_ops keeps an operator in PyTorch"
_INPUTS = "inputs are given to the call: pipeline.compile(model, args=(x,), kwargs={…})"
_EXECUTOR = "default(build_executor=…) builds engines in parallel, compiled.module(executor=…) says what runs them"
_NONE = "there is no equivalent here"

ELSEWHERE: Final = MappingProxyType(
    {
        "executor": _EXECUTOR,
        "enabled_precisions": _TYPED,
        "use_explicit_typing": _TYPED,
        "use_strong_types": _TYPED,
        "enable_autocast": _AUTOCAST,
        **dict.fromkeys(("fp16", "half", "bf16", "fp8", "int8", "precision", "dtype"), _PRECISION),
        "ir": "there is one front end: torch.export captures modules, ExportedProgram and TorchScript are taken too",
        "autocast_low_precision_type": _AUTOCAST,
        "autocast_excluded_nodes": _AUTOCAST,
        "autocast_excluded_ops": _AUTOCAST,
        "autocast_max_output_threshold": _AUTOCAST,
        "autocast_max_depth_of_reduction": _AUTOCAST,
        "autocast_calibration_dataloader": f"{_AUTOCAST}; it goes by rules, not by data",
        "truncate_long_and_double": "int64 stays int64; for float64 there is truncate_double",
        "disable_tf32": "set NVIDIA_TF32_OVERRIDE=0 in the environment before TensorRT is loaded",
        "debug": _LOG,
        "dryrun": 'print(pipeline.default().until("partition")(model, args)) shows what would run where, and why',
        "torch_executed_modules": "torch_executed_ops also takes predicates on the module path",
        "pass_through_build_failures": _FAILURES,
        "use_fast_partitioner": _ENGINES,
        "enable_resource_partitioning": _ENGINES,
        "cpu_memory_budget": "weights are held once, and tensors made from them are in files",
        "offload_module_to_cpu": "the model may be on the CPU from the start",
        "gpu_id": _WHERE,
        "hardware_compatible": _WHERE,
        "make_refittable": _REFIT,
        "make_refitable": _REFIT,
        "timing_cache_path": _TIMING,
        "custom_engine_cache": _STORE,
        "runtime_cache_path": "runtime_cache takes a folder",
        "cuda_graph_strategy": "engine_graphs has TensorRT-RTX launch engines as graphs, cuda_graphs records all",
        "dynamic_shapes_kernel_specialization_strategy": "it is called kernel_specialization",
        "use_python_runtime": _PYTHON,
        "lazy_engine_init": f"{_PYTHON}, and engines are loaded by the module, not by compiling",
        "enable_experimental_decompositions": "decompositions=pipeline.DECOMPOSITIONS.register(…) adds your own",
        "num_avg_timing_iters": "optimization_level says how long the builder may look for kernels",
        "enable_weight_streaming": "weight_streaming_budget, in bytes, builds and runs engines that stream weights",
        "dynamically_allocate_resources": f"{_NONE}: a worker's scratch memory is kept; execution_contexts bounds it",
        "use_distributed_mode_trace": f"{_NONE}: sharded models are compiled as they are (docs/sharded.md)",
        **dict.fromkeys(("inputs", "arg_inputs", "kwarg_inputs", "args", "kwargs", "dynamic_shapes"), _INPUTS),
        **dict.fromkeys(("sparse_weights", "engine_capability", "enable_cross_compile_for_windows"), _NONE),
        **dict.fromkeys(("tiling_optimization_level", "l2_limit_for_tiling"), _NONE),
        **dict.fromkeys(("dla_sram_size", "dla_local_dram_size", "dla_global_dram_size"), _NONE),
    }
)
"""For each setting of Torch-TensorRT and each former name: what to use instead, or that nothing is equivalent."""
