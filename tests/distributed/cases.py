"""What two ranks check together: each case runs in both, and compares with the model that is not sharded."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import pipeline
from pipeline.artifact.op_names import OperatorName
from pipeline.aten.collectives import is_collective
from pipeline.converters import collectives
from pipeline.export_fixes.patching import VERSION
from pipeline.program import Built, Converted
from pipeline.runtime.ranks import nccl_communicator
from pipeline.stages import unbuilt
from pipeline.stages.build import build
from pipeline.trt import CAPABILITIES

COLLECTIVES = {"_c10d_functional"}
COMPILE = pipeline.default().replace("build", unbuilt)
"""The reference executor needs no engines."""
INSIDE = pipeline.default(collectives_in_engine=True).replace("build", unbuilt)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Block(nn.Module):
    """A normalization and two linear layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(16), nn.Linear(16, width), nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute as a transformer's feed-forward layer."""
        return self.second(torch.relu(self.first(self.norm(x))))


BY_ROWS_AND_COLUMNS = {"first": ColwiseParallel(), "second": RowwiseParallel()}
LEAST = 1 if VERSION >= (2, 13) else 2
"""Before 2.13 DTensor's views ask whether a varying size is 1."""
ROWS = pipeline.Input(min_shape=(LEAST, 4, 16), max_shape=(8, 4, 16))


def mesh() -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def sharded(plan: dict[str, Any], width: int = 32) -> tuple[Block, Block]:
    """A block, and the same sharded by a plan."""
    whole = Block(width).eval()
    return whole, parallelize_module(copy.deepcopy(whole), mesh(), plan)


def run(compiled: Any) -> Any:
    """A module of the reference executor."""
    return compiled.module("reference")


def a_varying_batch(rank: int, folder: Path) -> None:
    whole, model = sharded(BY_ROWS_AND_COLUMNS)
    before = {name: (id(each), type(each)) for name, each in model.named_parameters()}
    compiled = COMPILE(model, (ROWS,))
    assert before == {name: (id(each), type(each)) for name, each in model.named_parameters()}
    assert "forward" not in vars(model)
    assert compiled.program.sharding is not None
    assert compiled.program.parameters["first.weight"].shape == (16, 16)
    module = run(compiled)
    assert module._layout.capture_obstacle == "the collectives of gloo run on the host"
    for rows in (LEAST, 3, 8):
        x = torch.randn(rows, 4, 16)
        torch.testing.assert_close(module(x), whole(x), **CLOSE)


def uneven_shards(rank: int, folder: Path) -> None:
    whole, model = sharded({"first": ColwiseParallel(use_local_output=False), "second": RowwiseParallel()}, width=33)
    x = torch.randn(2, 4, 16)
    torch.testing.assert_close(run(COMPILE(model, (x,)))(x), whole(x), **CLOSE)


def shards_of_a_sequence(rank: int, folder: Path) -> None:
    along = {"input_layouts": Shard(1)}, {"output_layouts": Shard(1)}
    plan = {"norm": SequenceParallel(), "first": ColwiseParallel(**along[0]), "second": RowwiseParallel(**along[1])}
    whole, model = sharded(plan)
    compiled = COMPILE(model, (pipeline.Input(min_shape=(1, 2, 16), max_shape=(4, 2, 16)),))
    x = torch.randn(3, 4, 16)
    local = x.chunk(2, 1)[rank].contiguous()
    torch.testing.assert_close(run(compiled)(local), whole(x).chunk(2, 1)[rank], **CLOSE)


def dtensors_in_and_out(rank: int, folder: Path) -> None:
    kept, along = {"use_local_output": False}, {"output_layouts": Shard(1)}
    plan = {
        "norm": SequenceParallel(**kept),
        "first": ColwiseParallel(input_layouts=Shard(1), **kept),
        "second": RowwiseParallel(**along, **kept),
    }
    whole, model = sharded(plan)
    x = torch.randn(2, 4, 16)
    given = distribute_tensor(x, mesh(), [Shard(1)])
    compiled = COMPILE(model, (given,))
    compiled.save(folder / f"dtensors{rank}.trtp")
    for each in (compiled, pipeline.load(folder / f"dtensors{rank}.trtp", COLLECTIVES)):
        found = run(each)(given)
        assert isinstance(found, DTensor)
        assert found.placements == (Shard(1),)
        torch.testing.assert_close(found.full_tensor(), whole(x), **CLOSE)
    with pytest.raises(pipeline.ExecutionError, match="expected S"):
        run(compiled)(distribute_tensor(x, mesh(), [Replicate()]))


def copies_alone(rank: int, folder: Path) -> None:
    """A module of copies on all ranks needs no collective."""
    whole = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.ReLU()).eval()
    x = torch.randn(3, 8)
    compiled = COMPILE(distribute_module(copy.deepcopy(whole), mesh()), (distribute_tensor(x, mesh(), [Replicate()]),))
    assert not compiled.program.sharding.groups
    torch.testing.assert_close(run(compiled)(x).full_tensor(), whole(x), **CLOSE)


class Reduced(nn.Module):
    """Collectives as users write them: they write to a tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The largest of all ranks, the sum of these and x, this rank's rows of its sum, and those of all."""
        largest = x * 1
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        total = largest + x
        dist.all_reduce(total)
        rows = x.new_empty(x.shape[0] // 2, *x.shape[1:])
        dist.reduce_scatter_tensor(rows, total)
        every = torch.empty_like(x)
        dist.all_gather_into_tensor(every, rows)
        return largest, total, rows, every

    @staticmethod
    def expected(every: torch.Tensor, rank: int) -> tuple[torch.Tensor, ...]:
        """What a rank gets."""
        largest = every.amax(0)
        total = (every + largest).sum(0).to(every.dtype)
        return largest, total, 2 * total.chunk(2)[rank], 2 * total


class Apart(nn.Module):
    """Two collectives, neither of which needs the other's result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks, and the largest."""
        largest, total = x * 1, x * 1
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        dist.all_reduce(total)
        return largest + total


def in_engines() -> Any:
    """A context in which process groups count as NCCL's, so that engines may have their collectives."""
    return patch.object(collectives, "group_backend", lambda name: "nccl")


def collectives_that_write(rank: int, folder: Path) -> None:
    """Between engines and inside of them: with dtypes that NCCL has, the layer's results are the process group's."""
    for dtype in (torch.float32, torch.float16, torch.int32, torch.float64):
        every = torch.randint(-9, 9, (2, 4, 5)).to(dtype)
        expected = Reduced.expected(every, rank)
        torch.testing.assert_close(run(COMPILE(Reduced(), (every[rank],)))(every[rank]), expected)
        with in_engines():
            compiled = INSIDE(Reduced(), (every[rank],))
        assert len(compiled.networks) == (dtype != torch.float64 and CAPABILITIES.collectives)
        torch.testing.assert_close(run(compiled)(every[rank]), expected)


def collectives_in_engines(rank: int, folder: Path) -> None:
    """One engine, equal on all ranks, with the permission of `load` that collectives between engines need."""
    whole, model = sharded(BY_ROWS_AND_COLUMNS)
    compile = pipeline.default(collectives_in_engine=True)
    why = "the process group's backend is gloo" if CAPABILITIES.collectives else "supports no collectives in engines"
    assert why in str(compile.until("partition")(pipeline.capture(model, (ROWS,))))
    if not CAPABILITIES.collectives:
        return
    with in_engines():
        apart = INSIDE(Apart(), (torch.ones(3),))
    assert not apart.networks
    assert "it does not depend on the previous collective" in str(apart.coverage)
    torch.testing.assert_close(run(apart)(torch.ones(3) * rank), torch.ones(3) * 2)
    with pytest.raises(pipeline.ExecutionError, match="need an NCCL process group, but '0' uses gloo"):
        nccl_communicator("0")
    with in_engines():
        compiled = compile(model, (ROWS,))
        own = {"torch_executed_ops": {torch.ops._c10d_functional.all_reduce}, "collectives_in_engine": True}
        kept = pipeline.default(**own).replace("build", unbuilt)(model, (ROWS,))
    assert "at node wait_tensor" in str(kept.coverage)  # it waits where the collective begins
    assert len(compiled.engines) == 1
    assert "operation=ALL_REDUCE reduction=SUM num_ranks=2" in str(compiled.networks[0])
    compiled.save(folder / f"inside{rank}.trtp")
    with pytest.raises(pipeline.ArtifactError, match="_c10d_functional"):
        pipeline.load(folder / f"inside{rank}.trtp")
    x = torch.randn(3, 4, 16)
    for each in (compiled, kept, pipeline.load(folder / f"inside{rank}.trtp", COLLECTIVES)):
        torch.testing.assert_close(run(each)(x), whole(x), **CLOSE)
    for node in filter(is_collective, each.program.graph.nodes):  # as in a file that wants no permission
        node.target = OperatorName(str(node.target))
    with pytest.raises(pipeline.ExecutionError, match="the engine has a collective, but the program's graph has none"):
        run(each)(x)


def the_backend_of_torch_compile(rank: int, folder: Path) -> None:
    whole, model = sharded(BY_ROWS_AND_COLUMNS)
    backend, x = pipeline.backend(COMPILE, executor="reference"), torch.randn(2, 4, 16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), whole(x), **CLOSE)
    assert not backend.refused
    torch._dynamo.reset()


def files_of_ranks(rank: int, folder: Path) -> None:
    whole, model = sharded(BY_ROWS_AND_COLUMNS)
    COMPILE(model, (ROWS,)).save(folder / f"rank{rank}.trtp")
    dist.barrier()
    x = torch.randn(2, 4, 16)
    with pytest.raises(pipeline.ArtifactError, match="_c10d_functional"):
        pipeline.load(folder / f"rank{rank}.trtp")
    torch.testing.assert_close(run(pipeline.load(folder / f"rank{rank}.trtp", COLLECTIVES))(x), whole(x), **CLOSE)
    with pytest.raises(pipeline.ExecutionError, match=f"rank {1 - rank} of 2, but this process is rank {rank} of 2"):
        run(pipeline.load(folder / f"rank{1 - rank}.trtp", COLLECTIVES))


def other_shapes(rank: int, folder: Path) -> None:
    whole, model = sharded(BY_ROWS_AND_COLUMNS)
    module, x = run(COMPILE(model, (ROWS,))), torch.randn(4, 4, 16)
    found = rf"{rank} has shapes x: \[{LEAST + rank}, 4, 16\]; rank {1 - rank} has x: \[{LEAST + 1 - rank}, 4, 16\]"
    with pytest.raises(pipeline.ExecutionError, match=found):
        module(x[: LEAST + rank])
    torch.testing.assert_close(module(x), whole(x), **CLOSE)  # the ranks go on


def equal_engines_are_built_once(rank: int, folder: Path) -> None:
    """Networks without weights are equal on both ranks, also those with collectives."""
    _, model = sharded(BY_ROWS_AND_COLUMNS)
    built = torch.zeros(1)

    def counted(converted: Converted) -> Built:
        built.add_(len(converted.networks))
        return build(converted)

    for inside in (False, True):
        cached = pipeline.cached(pipeline.DiskStore(folder / f"engines{inside}"), counted)
        compile = pipeline.default(collectives_in_engine=inside).replace("build", cached)
        with in_engines():
            compiled = compile.insert(pipeline.shared_weights(), after="partition")(model, (ROWS,))
        dist.all_reduce(built)
        assert int(built) == len(compiled.engines) == len(list((folder / f"engines{inside}").glob("*.engine")))
        built.zero_()


def new_weights(rank: int, folder: Path) -> None:
    _, model = sharded(BY_ROWS_AND_COLUMNS)
    x, compiled = torch.randn(2, 4, 16), COMPILE(model, (ROWS,))
    torch.manual_seed(1)
    other, sharded_other = sharded(BY_ROWS_AND_COLUMNS)
    torch.testing.assert_close(run(pipeline.refit_module_weights(compiled, sharded_other))(x), other(x), **CLOSE)


class Asynchronous(nn.Module):
    """A collective that does not wait."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks."""
        y = x * 1
        dist.all_reduce(y, async_op=True).wait()
        return y


class Sent(nn.Module):
    """A tensor of the first rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The first rank's."""
        y = x * 1
        dist.broadcast(y, 0)
        return y


class Partly(nn.Module):
    """A result that is a part of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks = mesh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As it is."""
        return DTensor.from_local(x, self.ranks, [Partial()], run_check=False)


def what_is_refused(rank: int, folder: Path) -> None:
    gathered = fully_shard(nn.Linear(3, 3), mesh=mesh()), DistributedDataParallel(nn.Linear(3, 3))
    refused = {Asynchronous(): "async", Sent(): "broadcast", Partly(): "with placement P"}
    refused |= dict(zip(gathered, ("whose hooks gather", "synchronizes gradients"), strict=True))
    for model, why in refused.items():
        with pytest.raises(pipeline.CaptureError, match=why):
            COMPILE(model.eval(), (torch.randn(3),))
    with pytest.raises(pipeline.CaptureError, match="a DeviceMesh of cpu, but is captured with device=cuda"):
        pipeline.capture(sharded(BY_ROWS_AND_COLUMNS)[1], (torch.randn(2, 4, 16),), device="cuda")


def a_rank_that_ends(rank: int, folder: Path) -> None:
    """The last case: one rank ends, and the other is told in which collective."""
    _, model = sharded(BY_ROWS_AND_COLUMNS)
    module, x = run(COMPILE(model, (ROWS,))), torch.randn(4, 4, 16)
    module(x)
    if rank == 1:
        (folder / "rank1.json").write_text((folder / "rank1.json").read_text()[:-1] + ', "a_rank_that_ends": ""}')
        os._exit(0)
    with pytest.raises(pipeline.ExecutionError, match="rank 0 failed in the collective _c10d_functional"):
        module(x)


CASES = (
    a_varying_batch,
    uneven_shards,
    shards_of_a_sequence,
    dtensors_in_and_out,
    copies_alone,
    collectives_that_write,
    collectives_in_engines,
    the_backend_of_torch_compile,
    files_of_ranks,
    other_shapes,
    equal_engines_are_built_once,
    new_weights,
    what_is_refused,
    a_rank_that_ends,
)
