"""What four ranks check together."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from pipeline.trt import CAPABILITIES
from tests.distributed.cases import BY_ROWS_AND_COLUMNS, CLOSE, COMPILE, INSIDE, ROWS, Block, in_engines, run
from tests.distributed.models import SIZES, TEXT, generates


def square() -> DeviceMesh:
    """Two ranks by two."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def data_and_tensor_parallel(rank: int, folder: Path) -> None:
    """Two replicas, each sharded over two ranks, get other batches of other sizes."""
    ranks, whole = square(), Block().eval()
    model = parallelize_module(copy.deepcopy(whole), ranks["tensor"], BY_ROWS_AND_COLUMNS)
    x = torch.randn(2, 5, 4, 16)[rank // 2, : 2 + rank // 2]
    for compile in (COMPILE, INSIDE):  # inside of engines each replica has its own communicator
        with in_engines():
            compiled = compile(model, (ROWS,))
        assert list(compiled.program.sharding.groups.values()) == [((0, 1), (2, 3))[rank // 2]]
        torch.testing.assert_close(run(compiled)(x), whole(x), **CLOSE)
    assert len(compiled.networks) == 1 or not CAPABILITIES.collectives


class Whole(nn.Module):
    """A module whose results all ranks have."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: DTensor) -> torch.Tensor:
        """Gather the result."""
        return self.inside(x).redistribute(placements=[Replicate(), Replicate()])


def shards_over_both_dims(rank: int, folder: Path) -> None:
    ranks, whole = square(), nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)).eval()

    def shard(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, each in list(module.named_parameters(recurse=False)):
            placements = [Shard(0), Shard(1) if each.dim() == 2 else Replicate()]
            module.register_parameter(name, nn.Parameter(distribute_tensor(each, mesh, placements)))

    model, x = distribute_module(copy.deepcopy(whole), ranks, shard), torch.randn(3, 16)
    given = distribute_tensor(x, ranks, [Replicate(), Replicate()])
    with in_engines():
        compiled = INSIDE(Whole(model), (given,))
    assert "the program's collectives use 2" in str(compiled.coverage) or not CAPABILITIES.collectives
    compiled.save(folder / f"both{rank}.trtp")
    dist.barrier()
    found = run(pipeline.load(folder / f"both{rank}.trtp", {"_c10d_functional"}))(given)
    torch.testing.assert_close(found.full_tensor(), whole(x), **CLOSE)


def llama_over_four(rank: int, folder: Path) -> None:
    generates(LlamaForCausalLM, LlamaConfig(**SIZES, **{**TEXT, "num_key_value_heads": 4}), rank, folder)


def stages_of_a_pipeline(rank: int, folder: Path) -> None:
    """Each rank compiles its stage; torch's schedule sends between them."""
    whole = nn.Sequential(*(Block() for _ in range(4))).eval()
    x = torch.randn(8, 4, 16)
    stage = run(COMPILE(whole[rank], (x[:2],)))
    with torch.no_grad():
        schedule = ScheduleGPipe(PipelineStage(stage, rank, 4, torch.device("cpu")), n_microbatches=4)
        found = schedule.step(x) if rank == 0 else schedule.step()
    if rank == 3:
        torch.testing.assert_close(found, whole(x), **CLOSE)


MORE = (data_and_tensor_parallel, shards_over_both_dims, llama_over_four, stages_of_a_pipeline)
