"""``device="cuda"``: the graph that torch gives on a GPU, on any machine; what is given stays where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import pipeline


class ByDevice(torch.nn.Module):
    """What a model may do with devices."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.tied = self.linear.weight
        self.register_buffer("positions", torch.arange(4.0), persistent=False)
        self.plain = torch.tensor([2.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x)) @ self.tied + self.positions[None, :]
        y = y + torch.arange(4, device=x.device) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)[None]
        y = y * self.plain.to(x.device) + torch.full((4,), 0.5, device=y.device)
        return y * 2 if x.is_cuda else y + 1


X = torch.randn(3, 4)


def by_device() -> ByDevice:
    """A model whose batch norm has statistics of its own."""
    model = ByDevice().eval()
    torch.nn.init.normal_(model.norm.running_mean)
    torch.nn.init.uniform_(model.norm.running_var, 0.5, 2.0)
    return model


def devices(program: pipeline.Program) -> set[str]:
    """Where the inputs and parameters of the graph are."""
    return {
        n.meta["val"].device.type
        for n in program.graph.nodes
        if n.op == "placeholder" and "plain" not in n.name and "lifted" not in n.name
    }


def test_the_graph_is_that_of_a_gpu() -> None:
    program = pipeline.capture(by_device(), (X,), device="cuda")
    assert devices(program) == {"cuda"} and program.settings.device == "cuda"
    assert devices(pipeline.capture(by_device(), (X,))) == {"cpu"}
    assert devices(pipeline.capture(by_device(), (X,), device="cpu")) == {"cpu"}


def test_the_branch_of_the_gpu_runs_here() -> None:
    model = by_device()
    compiled = pipeline.default(device="cuda", require_full_compilation=True)(
        model, (X,), dynamic_shapes=({0: Dim("n")},)
    )
    for x in (X, torch.randn(1, 4)):
        with torch.no_grad():
            torch.testing.assert_close(compiled.module("reference")(x), (model(x) - 1) * 2)


def test_segments_of_torch_run_where_the_program_runs() -> None:
    model = by_device()
    compiled = pipeline.default(device="cuda", torch_executed_ops={lambda path: True})(model, (X,))
    assert not compiled.engines
    torch.testing.assert_close(compiled.module("reference")(X), (model(X) - 1) * 2)


def test_nothing_given_is_changed_or_copied() -> None:
    model = by_device()
    before = {name: (id(t), t.data_ptr(), t.device) for name, t in model.state_dict(keep_vars=True).items()}
    program = pipeline.capture(model, (X,), device="cuda")
    assert {name: (id(t), t.data_ptr(), t.device) for name, t in model.state_dict(keep_vars=True).items()} == before
    assert not any(isinstance(tensor, FakeTensor) for tensor in program.parameters.values())
    assert program.parameters["linear.weight"] is model.linear.weight
    assert program.parameters["positions"] is model.positions
    assert all(t.requires_grad for t in model.parameters())


def test_inputs_are_described_as_ever() -> None:
    x = pipeline.Input(min_shape=(1, 4), max_shape=(8, 4), name="x")
    compiled = pipeline.default(device="cuda")(by_device(), (x,))
    assert [(r.min, r.max) for r in compiled.program.inputs[0].ranges] == [(1, 8), (4, 4)]


def test_buffers_that_change_are_the_programs_own() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    model = Counter()
    module = pipeline.default(device="cuda")(model, (torch.zeros(2),)).module("reference")
    assert [float(module(torch.zeros(2))[0]) for _ in range(3)] == [1, 2, 3]
    assert float(model.count[0]) == 0


def test_control_flow_runs_where_the_program_runs() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def above(x: torch.Tensor) -> torch.Tensor:
                return x[0] + torch.ones(2, device=x.device) + torch.ones(2).to(x.device)

            def below(x: torch.Tensor) -> torch.Tensor:
                return x[1] - torch.zeros(2, device=x.device)

            return torch.cond(x.sum() > 0, above, below, (x,))

    module = pipeline.default(device="cuda")(Branches(), (torch.ones(2, 2),)).module("reference")
    for x in (torch.ones(2, 2), -torch.ones(2, 2)):
        torch.testing.assert_close(module(x), Branches()(x))


def test_autocast_around_is_kept() -> None:
    model = by_device()
    with torch.autocast("cpu", torch.bfloat16):
        on_cpu, on_cuda = pipeline.capture(model, (X,)), pipeline.capture(model, (X,), device="cuda")
    assert "bfloat16" in str(on_cpu) and "bfloat16" not in str(on_cuda)


def test_autocast_inside_is_the_gpus() -> None:
    class Half(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(x.device.type, torch.float16):
                return x @ x.mT

    assert "float16" in str(pipeline.capture(Half(), (X,), device="cuda"))


def test_gradients_inside_do_no_harm() -> None:
    class Enabled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return self.linear(x)

    assert pipeline.capture(Enabled(), (X,), device="cuda")


def test_what_torch_cuda_says_is_a_gpus() -> None:
    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.cuda.get_device_capability(x.device)[0]

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, which says so itself")
    before = torch.cuda.get_device_capability
    for capabilities, factor in (((), 8), (("9.0", "12.0"), 9)):
        settings = pipeline.CompilationSettings(compute_capabilities=capabilities)
        program = pipeline.capture(Asks(), (X,), settings=settings, device="cuda")
        assert f"(x, {factor})" in str(program)
    assert torch.cuda.get_device_capability is before


class Locked(torch.nn.Module):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it is one of a kind")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_what_cannot_be_copied_is_told() -> None:
    with pytest.raises(pipeline.CaptureError, match=r"Locked cannot be captured for cuda.*one of a kind"):
        pipeline.capture(Locked(), (X,), device="cuda")


def test_an_exported_program_has_its_device() -> None:
    exported = torch.export.export(torch.nn.ReLU(), (X,))
    assert pipeline.capture(exported, device="cpu")
    with pytest.raises(ValueError, match="'cuda', but the program was exported on cpu: pass the module"):
        pipeline.default(device="cuda")(exported)


@pytest.mark.parametrize(
    ("device", "error"),
    [("meta", ValueError), ("cuda:1", ValueError), (torch.device("cuda", 0), ValueError), (3, TypeError)],
)
def test_other_devices_are_refused(device: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="device must be 'cuda', 'cpu' or None"):
        pipeline.default(device=device)
    assert pipeline.default(device=torch.device("cuda")).settings.device == "cuda"


def test_constants_that_python_reads_have_their_values() -> None:
    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            two = torch.tensor(2.0, device=x.device)
            three = torch.tensor(3).to(x.device)
            return torch.cat([torch.tensor([], device=x.device), x.flatten() * two]) * three.item()

    module = pipeline.default(device="cuda")(Reads(), (X,)).module("reference")
    torch.testing.assert_close(module(X), X.flatten() * 6)


class Masked(torch.nn.Module):
    """An attention whose mask lies in memory in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[2, 4, 12, 16], [12, 12] -> [2, 4, 12, 16]"""
        mask = {
            "none": lambda: None,
            "rows": lambda: mask > 0,
            "one row for all": lambda: mask[:1].expand(12, 12) > 0,
            "one element for a row": lambda: (mask[:, :1] > 0).expand(12, 12),
            "permuted": lambda: mask.t(),
        }[self.way]()
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)


@pytest.mark.parametrize(
    ("way", "kernel"),
    [
        ("none", True),
        ("rows", True),
        ("one row for all", True),
        ("one element for a row", False),
        ("permuted", False),
    ],
)
def test_a_kernel_takes_masks_whose_rows_lie_in_a_piece(way: str, kernel: bool) -> None:
    """As `check_last_dim_stride_equals_1_dense` of torch decides on a GPU: the result of a kernel lies otherwise."""
    inputs = torch.randn(2, 4, 12, 16), torch.randn(12, 12)
    program = pipeline.capture(Masked(way), inputs, device="cuda")
    (found,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)
    assert found.meta["val"].stride() == ((768, 16, 64, 1) if kernel else (768, 192, 16, 1))


class Anchors(nn.Module):
    """A head that keeps the grid of the call before, and moves it with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.grid = torch.empty(0)

    def _apply(self, fn: Any, recurse: bool = True) -> Anchors:
        super()._apply(fn, recurse)
        self.grid = fn(self.grid)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        if self.grid.shape[0] != x.shape[0]:
            self.grid = torch.arange(x.shape[0], device=x.device)[:, None] / 2
        return self.linear(x) + self.grid


def test_what_cannot_be_moved_is_told() -> None:
    class Stuck(Anchors):
        def _apply(self, fn: Any, recurse: bool = True) -> Anchors:
            raise TypeError("it stays")

    with pytest.raises(pipeline.CaptureError, match="its _apply fails on fake tensors: it stays"):
        pipeline.capture(Stuck(), (torch.randn(3, 4),), device="cuda")


@pytest.mark.parametrize("called", [False, True])
def test_what_a_module_moves_itself_is_moved(called: bool) -> None:
    """A detector of Ultralytics keeps its anchors so."""
    model, x = nn.Sequential(Anchors(), nn.LSTM(4, 4)).eval(), torch.randn(3, 4)
    if called:
        model(x)
    grid = model[0].grid
    compiled = pipeline.default(require_full_compilation=True, min_block_size=1, device="cuda")(model, args=(x,))
    assert model[0].grid is grid
    for ours, wanted in zip(tree_leaves(compiled.module("reference")(x)), tree_leaves(model(x)), strict=True):
        torch.testing.assert_close(ours, wanted)


class Strides(torch.nn.Module):
    """A head with strides in a plain tensor, which its own ``_apply`` moves, as YOLO's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.stride = torch.nn.Linear(4, 4), torch.tensor([8.0, 16.0])

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.stride = fn(self.stride)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) if self.stride[0] > 4 else x
        return y * torch.full((4,), self.stride[0], device=x.device) + (self.stride * 2)[1].item()


def test_numbers_that_a_model_moves_itself_are_known() -> None:
    compiled = pipeline.default(device="cuda", min_block_size=1)(Strides().eval(), args=(X,))
    assert not compiled.coverage.fallback
