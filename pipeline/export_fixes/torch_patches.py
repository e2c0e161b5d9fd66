"""The table of patches of torch's functions that are active during traces."""

from __future__ import annotations

import builtins
import logging
import math
from collections import OrderedDict
from functools import partial
from typing import Final

import sympy
import torch
from torch import _meta_registrations
from torch._C import DispatchKey
from torch._decomp import decomposition_table, decompositions
from torch._dynamo.output_graph import OutputGraph
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch._library.fake_impl import FakeImplCtx
from torch._subclasses import fake_utils, meta_utils
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution
from torch.export import _trace, exported_program
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.utils.hooks import RemovableHandle

from pipeline.aten.preserved_composites import CELLS, RECURRENT
from pipeline.aten.types import aten
from pipeline.converters.composite_math import unfold_backward
from pipeline.export_fixes import (
    branches,
    example_guards,
    export_steps,
    flex_attention,
    input_checks,
    known_values,
    model_calls,
    model_queries,
    runtime_asserts,
    symbolic_kernels,
    value_hooks,
)
from pipeline.export_fixes.patching import Replacement
from pipeline.shapes import guard_provenance

SEEDS: Final = (
    *((owner, ("manual_seed", "seed", "set_rng_state")) for owner in (torch, torch.random)),
    (torch.cuda, ("manual_seed", "manual_seed_all")),
)
"""The functions that seed a random generator, each with the object in which models look it up."""

_export = partial(Replacement, during="export")
_example = partial(Replacement, during="example")
_gpu = partial(Replacement, during="gpu")

TABLE: Final = (
    Replacement(
        type(torch.fx.experimental._config),
        "__getattr__",
        lambda own, config, name: name == "backed_size_oblivious" or own(config, name),
        "assumes that a dynamic size is at least 2; before 2.13, torch's own setting applies to all threads",
    ),
    Replacement(
        symbolic_shapes,
        "_guard_or",
        symbolic_kernels.compare_as_example,
        "assumes that sizes of two inputs differ, if an operator compares them before they are known to be equal",
        during="comparing",
        since=(2, 13),
    ),
    Replacement(
        op_implementations_dict,
        aten.slice.Tensor,
        symbolic_kernels.slice_tensor,
        "creates a symbol without definition for the size of x[: n // 2]",
        before=(2, 13),
    ),
    Replacement(
        _meta_registrations,
        "div_rtn",
        lambda _, x, y: x // y,
        "assumes that a pooling's steps end at the end of a dynamic dim, if they do in the example",
        before=(2, 13),
    ),
    *(
        Replacement(
            decomposition_table,
            target,
            symbolic_kernels.power_as_tensor,
            "specializes a dynamic exponent or base to its value in the example",
            before=(2, 13),
        )
        for target in (aten.pow.Tensor_Scalar, aten.pow.Scalar)
    ),
    Replacement(
        decomposition_table,
        aten.unfold_backward.default,
        lambda _, *args: unfold_backward(*args),
        "adds up windows element by element, which is thousands of operators for a window of istft",
        since=(2, 13),
    ),
    _export(
        Distribution,
        "_validate_sample",
        runtime_asserts.skip_dynamic_sample_check,
        "assumes that a dynamic size is not 1, when it checks the sample of a distribution",
    ),
    Replacement(
        logging.Logger, "handle", export_steps.redirect_log, "logs errors that it also raises or recovers from"
    ),
    Replacement(
        decompositions,
        "_compute_scale",
        symbolic_kernels.resize_step,
        "divides by the size of a resized dim minus 1, which may be 0",
    ),
    Replacement(math, "sqrt", symbolic_kernels.sqrt, "specializes a dynamic size", everywhere=True),
    _export(
        aten.one_hot.default,
        symbolic_kernels.KEY,
        symbolic_kernels.one_hot,
        "has no shape if the number of classes is not given: it converts the greatest class to an int",
    ),
    Replacement(
        op_implementations_dict,
        aten.bincount.default,
        symbolic_kernels.weighted_bincount,
        "sums weights as integers",
        before=(2, 13),
    ),
    Replacement(
        op_implementations_dict,
        aten.masked_select.default,
        lambda own, mode, func, self, mask: own(mode, func, *torch.broadcast_tensors(self, mask)),
        "bounds the selected elements by the size before broadcasting",
    ),
    Replacement(
        FakeImplCtx,
        "create_unbacked_symint",
        lambda own, context, *, min=0, max=None: own(context, min=min, max=max),
        "assumes at least two rows, if a fake implementation does not bound a data-dependent size",
    ),
    Replacement(
        FakeTensorMode,
        "dispatch",
        known_values.dispatch_with_known_values,
        "creates a symbol for a number read from a tensor that contains sizes, or several known numbers",
    ),
    _export(
        OutputGraph,
        "remove_tensorify_specialized_graphargs",
        value_hooks.skip_known_numbers,
        "treats the known number of a tensor as a symbol, in Dynamo",
    ),
    _export(
        symbolic_shapes.ShapeEnv,
        "evaluate_expr",
        guard_provenance.record_model_conditions,
        "records no condition of the model if an operator evaluated it before, for a memory layout",
    ),
    _export(
        symbolic_shapes,
        "uninteresting_files",
        guard_provenance.add_framework_files,
        "attributes conditions to our wrapper in the row above",
    ),
    Replacement(
        _NonStrictTorchFunctionHandler,
        "_override",
        model_calls.rewrite_model_call,
        "specializes index tensors that contain sizes to the example, fails on value checks and uint8 masks, has no "
        "shapes of packed sequences, and turns x.data and the lengths of pooling windows into constants",
    ),
    *(
        _export(
            target,
            symbolic_kernels.KEY,
            symbolic_kernels.shape_only_kernel(shapes),
            "unrolls the steps of a recurrent layer, for one length",
        )
        for target, shapes in RECURRENT.items()
    ),
    _export(
        flex_attention.OPERATOR,
        "__call__",
        flex_attention.decompose_flex_attention,
        "keeps flex_attention as one operator with two subgraphs",
    ),
    _export(
        aten.lstm_cell.default,
        symbolic_kernels.KEY,
        symbolic_kernels.shape_only_kernel(CELLS[aten.lstm_cell.default]),
        "has no shapes for a GPU's kernel of a cell without biases",
        before=(2, 15),
    ),
    _gpu(
        aten.gru_cell.default,
        symbolic_kernels.KEY,
        symbolic_kernels.shape_only_kernel(CELLS[aten.gru_cell.default]),
        "has no shapes for a GPU's kernel of a cell, and runs the kernel to determine them",
        before=(2, 15),
    ),
    *(
        _export(
            exported_program,
            name,
            export_steps.remove_redundant_copies,
            "replaces the result of a copy into a buffer by its source, even if the copy casts or expands",
        )
        for name in ("_remove_unnecessary_copy_op_pass", "_remove_unneccessary_copy_op_pass")
    ),
    _export(
        proxy_tensor,
        "proxy_call",
        lambda own, *args: branches.record_side_effects(partial(value_hooks.trace_known_number_read, own), *args),
        "reads outdated values of a tensor that was written through a view, and does not report side effects",
    ),
    *(
        _export(
            proxy_tensor._ModuleStackTracer,
            name,
            make,
            "treats modules that other threads call as parts of the model",
            everywhere=True,
        )
        for name, make in (("call_module", export_steps.trace_call), ("getattr", export_steps.trace_getattr))
    ),
    _export(
        _trace,
        "_fakify_params_buffers",
        value_hooks.fake_buffers_with_values,
        "creates a symbol for a number that is read from a buffer",
    ),
    _export(_trace, "make_fake_inputs", value_hooks.fake_inputs_with_values, "does not know the value of an input"),
    _export(
        _trace,
        "produce_guards_and_solve_constraints",
        export_steps.store_range_violations,
        "fails after the trace if a range is wider than the model accepts",
    ),
    _export(
        _trace,
        "register_buffer_assignment_hook",
        lambda _, module, assigned: RemovableHandle(OrderedDict()),
        "writes assigned buffers of the model itself, but not of its submodules",
    ),
    _export(
        _trace,
        "get_class_if_classified_error",
        export_steps.suppress_error_advice,
        "prints the graph and a hint before an error",
    ),
    _export(
        _trace,
        "make_constraints",
        input_checks.skip_duplicate_kwargs,
        "counts the inputs in **kwargs twice, and then fails if a size is dynamic",
    ),
    _export(
        torch.nn.TransformerEncoder,
        "forward",
        model_queries.encode_with_zero_padding,
        "computes values at padding during a trace, where eager returns zeros",
    ),
    _export(
        torch.nn.Module,
        "_apply",
        model_queries.apply_by_assignment,
        "swaps the contents of weights that a model converts during a trace, which fails",
    ),
    _example(
        FakeTensorMode, "__init__", example_guards.init_with_example_values, "has no values for data-dependent branches"
    ),
    _example(
        meta_utils,
        "_safe_copy",
        lambda own, to, source: own(to, source.detach() if isinstance(source, torch.nn.Parameter) else source),
        "does not copy the values of parameters, and computes with uninitialized memory",
    ),
    *(
        _example(fake_utils, name, lambda *_, **__: None, why)
        for name, why in (
            ("_check_fake_real_tensors", "specializes data-dependent sizes to the example, to compare storage offsets"),
            ("_check_alias_info", "fails if an operator returns its input for the example, and a new tensor otherwise"),
        )
    ),
    _example(
        symbolic_shapes.ShapeEnv,
        "set_real_tensor_prop_unbacked_vals",
        lambda own, env, symbol, value: own(env, symbol.lhs if isinstance(symbol, sympy.Eq) else symbol, value),
        "stores the truth value of a tensor by its condition, not by the condition's symbol",
        before=(2, 13),
    ),
    _example(
        symbolic_shapes.ShapeEnv,
        "_log_real_tensor_propagation",
        example_guards.record_decision,
        "logs the example's decisions without their lines",
    ),
    _example(builtins, "len", example_guards.len_keeping_symbols, "returns the number of the example's rows"),
    *(
        Replacement(
            torch.compiler,
            name,
            model_queries.hide_tracing_from_model,
            "tells a model that it is exported, and some models then run code that fails",
            during="called",
        )
        for name in ("is_compiling", "is_exporting")
    ),
    *(
        _export(
            owner,
            name,
            model_queries.reject_seeding,
            "seeds during the trace, while the graph draws other numbers in each call",
        )
        for owner, names in SEEDS
        for name in names
    ),
    _gpu(
        torch.cuda,
        "get_device_capability",
        lambda _, device=None: model_queries.capability.get(),
        "fails without a GPU, although models call it",
    ),
    _gpu(
        torch.cuda,
        "is_bf16_supported",
        lambda _, including_emulation=True: model_queries.capability.get() >= (8, 0),
        "describes the machine's GPU, not the assumed one",
    ),
    _gpu(torch.cuda, "current_device", lambda _: 0, "fails without a GPU"),
    _gpu(
        torch.cuda.amp.common,
        "amp_definitely_not_available",
        lambda _: False,
        "switches autocast for cuda off without a GPU",
    ),
    _gpu(
        aten.scaled_dot_product_attention.default,
        symbolic_kernels.KEY,
        model_queries.choose_gpu_attention_kernel,
        "asks the GPU for its attention kernel, which determines the memory layout of the result",
    ),
    _gpu(
        aten._to_copy.default,
        DispatchKey.BackendSelect,
        model_queries.copy_constant,
        "copies the stored values of a constant to the GPU",
    ),
)
"""All replacements of torch's functions. A test of each row checks which versions of torch need it."""
