"""What shows that torch needs each row of the table of replacements."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import threading
import traceback
import unittest
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributions import Normal
from torch.export import Dim, export
from torch.nn.attention.flex_attention import flex_attention

import pipeline
from pipeline.aten.preserved_composites import RECURRENT
from pipeline.export_fixes import patch_contexts
from pipeline.export_fixes.export_steps import collect_range_violations
from pipeline.export_fixes.torch_patches import SEEDS
from tests.export_fixes.by_the_example import BY_EXAMPLE, Halves, LooksUp, by_the_example, counts_alike, differs, filled
from tests.export_fixes.made_up import adds_elements, one_of_two, takes_windows_to_fit, there_are_two
from tests.export_fixes.test_constant_inputs import Windows, inputs

aten = torch.ops.aten
ROWS = {0: Dim("rows", min=1, max=9)}
ROW = torch.randn(4, 3)


class Calls(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Copies(torch.nn.Module):
    """A buffer that is written to, and read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x)
        return self.kept * 2


class Recurrent(torch.nn.Module):
    """A recurrent layer, over a sequence that comes first."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = torch.nn.RNN(3, 2) if kind.startswith("rnn") else getattr(torch.nn, kind.upper())(3, 2)
        if kind == "rnn_relu":
            self.layer = torch.nn.RNN(3, 2, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def exported(model: torch.nn.Module | Callable[..., Any], x: torch.Tensor = ROW, dims: Any = ROWS) -> Any:
    """The nodes' values by the operators' names, as torch exports them in the way of ours."""
    module = model if isinstance(model, torch.nn.Module) else Calls(model)
    with torch.no_grad(), patch_contexts.patch_for_export():
        program = export(module.eval(), (x,), dynamic_shapes=((dims,) if not isinstance(module, Copies) else None))
        return {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "call_function"}


def fails(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call raises."""
    try:
        function(*args)
    except Exception:
        return True
    return False


def has_unknown_sizes(function: Callable[..., Any]) -> bool:
    """Whether the export has symbols that nothing tells."""
    values = exported(function).values()
    return any("u" in str(v.shape if isinstance(v, torch.Tensor) else v) for v in values)


def repeated(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(torch.tensor(x.shape[0]).item(), 1)


def read_by_dynamo(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(int((x.shape[0] + 6) // 2), 1) * torch.full((), 2)


def put(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[: torch.tensor(x.shape[0]) - 1] = 0
    return y


def resized(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.interpolate(x.T[None], scale_factor=0.6, mode="linear", align_corners=True)


def weights_are_whole() -> bool:
    values = exported(lambda x: torch.bincount((x[:, 0] > 0).long(), x[:, 1], minlength=3))
    return not values["bincount"].dtype.is_floating_point


def masks_choose_few() -> bool:
    program = pipeline.capture(Calls(lambda x: x[:, :1].masked_select(x[:1] > -1)), (torch.rand(4, 3),))
    return [symbol.range.max for symbol in program.shapes.symbols.values()] == [4]


def is_taken_apart(kind: str) -> bool:
    """Whether a recurrent layer is written out, or its length is a constant."""
    try:
        return kind not in exported(Recurrent(kind))
    except Exception:
        return True


def copy_is_lost() -> bool:
    """Whether the copy into a buffer is out of the graph, with its cast."""
    program = export(Copies(), (ROW,))
    with torch.no_grad(), patch_contexts.patch_for_export():
        graph = program.run_decompositions({}).graph
    return next(n for n in graph.nodes if n.name == "mul").meta["val"].dtype != torch.float64 or not [
        n for n in graph.nodes if n.target in (aten.copy.default, aten._to_copy.default)
    ]


def told(question: str) -> Callable[[], bool]:
    """Whether a model fails that goes a way of its own if torch says so."""
    return lambda: fails(pipeline.capture, Calls(lambda x: x.way if getattr(torch.compiler, question)() else x), (ROW,))


def without_gpu(function: Callable[..., Any]) -> Callable[[], bool]:
    """Whether a question about a GPU has no answer, or that of the machine at hand."""

    def wrong() -> bool:
        with patch_contexts.patch_for_device("cuda", ("8.9",)):
            return fails(function) or function() is False

    return wrong


def attention_lies_otherwise() -> bool:
    layer = Calls(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    program = pipeline.capture(layer, (torch.randn(1, 2, 4, 8),), device="cuda")
    attention = next(n for n in program.graph.nodes if "scaled_dot_product" in str(n.target))
    return tuple(attention.meta["val"].stride()) != (64, 8, 16, 1)


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 else x + 1


def least(function: Callable[..., Any]) -> int:
    """The fewest rows that a program takes."""
    program = pipeline.capture(Calls(function).eval(), (ROW,), dynamic_shapes=({0: Dim("rows", min=1, max=9)},))
    (rows,) = program.shapes.values()
    return rows.min


def gives_no_program() -> bool:
    with collect_range_violations():
        return fails(exported, by_size)


def higher_order(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.fx.Node]:
    """The calls of graphs in an export."""
    with patch_contexts.patch_for_export():
        nodes = export(Calls(function), (ROW,)).graph.nodes
    return [node for node in nodes if isinstance(node.target, torch._ops.HigherOrderOperator)]


def by_a_sum(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def failed(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Export it with Dynamo, which fails."""
    with patch_contexts.patch_for_export():
        assert fails(functools.partial(export, Calls(function), (ROW,), dynamic_shapes=(ROWS,), strict=True))


def is_printed() -> bool:
    """Whether torch prints what it traced before an error."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        failed(by_a_sum)
    return "GraphModule" in text.getvalue()


def is_logged() -> bool:
    """Whether torch logs an error that it raises."""
    with unittest.TestCase().assertLogs("torch._guards", "ERROR") as logs:
        logging.getLogger("torch._guards").error("ours")
        failed(lambda x: x + torch.hann_window(x.shape[0])[:1])
    return len(logs.records) > 1


class Keywords(torch.nn.Module):
    """Takes all but its first input as it comes."""

    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return x * 2 + others["y"]


def keywords_are_counted_twice() -> bool:
    rows = pipeline.Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(9, 3))
    return fails(lambda: pipeline.capture(Keywords(), (), {"x": rows, "y": rows}))


def as_on_a_gpu(model: torch.nn.Module) -> None:
    pipeline.capture(model, (ROW,), device="cuda")


class Holding(torch.nn.Module):
    """Decides by a number in a buffer, moves a layer as it runs, and reads a number that it has put."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.linear = function, torch.nn.Linear(3, 3)
        self.register_buffer("flag", torch.tensor(True))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def put_number(_: Holding, x: torch.Tensor) -> torch.Tensor:
    number = torch.tensor([0])
    number[0] = (x > 0).sum()
    return x.repeat(number.item(), 1)


def reads_what_was_before() -> bool:
    program = pipeline.capture(Holding(put_number).eval(), (ROW,))
    return any(node.args[1] == [0, 1] for node in program.graph.nodes if node.target is aten.repeat.default)


class Swaps(torch.nn.Module):
    """Exchanges two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.zeros(1))
        self.register_buffer("other", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.one, self.other = self.other, self.one
        return x


def loses_exchanged_buffers() -> bool:
    program = pipeline.capture(Swaps(), (ROW,))
    return len({output.value for output in program.outputs}) < 3


def seeds(name: str) -> Callable[[], bool]:
    """Whether a model that calls a function which seeds, somewhere, is not refused with the line that does."""

    def is_missed(owner: Any) -> bool:
        given = (torch.get_rng_state(),) if name == "set_rng_state" else () if name == "seed" else (0,)
        try:
            pipeline.capture(Calls(lambda x: (getattr(owner, name)(*given), x)[1]), (ROW,))
        except pipeline.CaptureError as error:
            return "flaws.py" not in error.message
        return True

    return lambda: any(is_missed(owner) for owner, names in SEEDS if name in names)


def holding(function: Callable[..., Any]) -> Callable[[], bool]:
    return lambda: fails(lambda: pipeline.capture(Holding(function).eval(), (ROW,)))


def refuses_batches_that_are_one() -> bool:
    """Whether an attention is refused whose mask has batches of its own, which turn out to be those of keys."""

    def attend(given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keys, bias = given
        bias = bias.repeat_interleave(2, dim=0).view(keys.shape[0], 2, -1, 4)
        return torch.nn.functional.scaled_dot_product_attention(keys.repeat(1, 1, 3, 1), keys, keys, attn_mask=bias)

    given = torch.randn(3, 2, 4, 8), torch.randn(3, 1, 4)
    return fails(pipeline.capture, Calls(attend), (given,), None, ((ROWS, ROWS),))


def windows() -> None:
    patches, grid = inputs()
    pipeline.capture(Windows().eval(), (patches, pipeline.Constant(grid)))


class Watched(torch.nn.Module):
    """A model with a module by two names, at which another thread looks while it is exported."""

    def __init__(self, look: Callable[[torch.nn.Module], bool]) -> None:
        super().__init__()
        self.one = self.other = torch.nn.Identity()
        self.look, self.model = look, [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let the other thread look, and wait."""
        thread = threading.Thread(target=lambda: WATCHED.append(self.look(self.model[0])))
        thread.start()
        thread.join()
        return self.one(x) * 2


WATCHED: list[bool] = []


def watched(look: Callable[[torch.nn.Module], bool]) -> Callable[[], bool]:
    """Whether another thread sees something of an export."""
    return lambda: bool(exported(Watched(look))) and WATCHED.pop()


def calls_a_tracer(model: Any) -> bool:
    """Whether a module that is called asks torch's tracer."""
    seen: list[str] = []
    with model.one.register_forward_pre_hook(lambda *_: seen.extend(str(f) for f in traceback.extract_stack())):
        model.one(ROW)
    return any("_symbolic_trace.py" in frame and "call_module" in frame for frame in seen)


def padding_has_values() -> bool:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder, x = torch.nn.TransformerEncoder(layer, 1).eval(), torch.rand(1, 3, 4)
    with torch.no_grad():
        run = pipeline.default()(encoder, (x, None, torch.tensor([[False, False, True]]))).module("reference")
    return bool(run(x, None, torch.tensor([[False, True, True]]))[:, 1:].any())


FLAWS: Mapping[Any, Callable[[], bool]] = {
    "_guard_or": refuses_batches_that_are_one,
    "__getattr__": lambda: not fails(exported, by_size),
    aten.slice.Tensor: lambda: has_unknown_sizes(lambda x: x[: x.shape[0] // 2] * 2),
    aten.pow.Tensor_Scalar: lambda: fails(exported, lambda x: x ** (x.shape[0] / 2)),
    aten.pow.Scalar: lambda: fails(exported, lambda x: (x.shape[0] / 2) ** x),
    "_compute_scale": lambda: fails(exported, resized),
    aten.bincount.default: weights_are_whole,
    aten.one_hot.default: lambda: fails(exported, lambda x: torch.nn.functional.one_hot(x.long().abs())),
    aten.masked_select.default: masks_choose_few,
    "_validate_sample": lambda: least(lambda x: Normal(x, 1.0, validate_args=True).log_prob(x)) == 2,
    aten.unfold_backward.default: adds_elements,
    "div_rtn": takes_windows_to_fit,
    "create_unbacked_symint": there_are_two,
    "dispatch": lambda: has_unknown_sizes(repeated) and has_unknown_sizes(one_of_two),
    "evaluate_expr": lambda: least(lambda x: by_size(x.mT.reshape(x.shape))) == 1,
    "uninteresting_files": lambda: least(lambda x: x.mT.reshape(-1)) == 2,
    "_override": lambda: fails(exported, put),
    **{target: lambda kind=target._schema.name[6:]: is_taken_apart(kind) for target in RECURRENT},
    "_remove_unnecessary_copy_op_pass": copy_is_lost,
    "_remove_unneccessary_copy_op_pass": copy_is_lost,
    "produce_guards_and_solve_constraints": gives_no_program,
    "register_buffer_assignment_hook": loses_exchanged_buffers,
    **{name: seeds(name) for name in ("manual_seed", "manual_seed_all", "seed", "set_rng_state")},
    "get_class_if_classified_error": is_printed,
    "handle": is_logged,
    "__call__": lambda: bool(higher_order(lambda x: flex_attention(*[x[None, None]] * 3)[0, 0])),
    "make_constraints": keywords_are_counted_twice,
    "is_compiling": told("is_compiling"),
    "is_exporting": told("is_exporting"),
    "get_device_capability": without_gpu(lambda: torch.cuda.get_device_capability() == (8, 9)),
    "is_bf16_supported": without_gpu(lambda: torch.cuda.is_bf16_supported()),
    "current_device": without_gpu(lambda: torch.cuda.current_device() is not None),
    "amp_definitely_not_available": without_gpu(lambda: not torch.cuda.amp.common.amp_definitely_not_available()),
    aten.scaled_dot_product_attention.default: attention_lies_otherwise,
    aten._to_copy.default: lambda: fails(as_on_a_gpu, Calls(lambda x: x + torch.tensor(2.0, device=x.device))),
    aten.lstm_cell.default: lambda: fails(as_on_a_gpu, torch.nn.LSTMCell(3, 2, bias=False)),
    "__init__": by_the_example(lambda program: False),
    "_safe_copy": filled(by_the_example(differs)),
    "_check_fake_real_tensors": lambda: fails(lambda: pipeline.capture(LooksUp(), (ROW,), settings=BY_EXAMPLE)),
    "_check_alias_info": lambda: fails(lambda: pipeline.capture(Halves(), (ROW,), settings=BY_EXAMPLE)),
    "set_real_tensor_prop_unbacked_vals": by_the_example(differs),
    "_log_real_tensor_propagation": by_the_example(lambda program: len(program.outputs) == 1),
    "remove_tensorify_specialized_graphargs": lambda: least(read_by_dynamo) == 4,
    "sqrt": lambda: fails(exported, lambda x: x * math.sqrt(x.shape[0])),
    "len": counts_alike,
    "forward": padding_has_values,
    "_apply": holding(lambda m, x: m.linear.to(torch.float64)(x.double())),
    "_fakify_params_buffers": holding(lambda m, x: x + 1 if m.flag else x - 1),
    "proxy_call": reads_what_was_before,
    "make_fake_inputs": lambda: fails(windows),
    "call_module": watched(calls_a_tracer),
    "getattr": watched(lambda model: type(model.one) is not torch.nn.Identity),
    aten.gru_cell.default: lambda: fails(as_on_a_gpu, torch.nn.GRUCell(3, 2)),
}
"""What shows that torch does wrong without a row: by the row's name, or its operator."""
