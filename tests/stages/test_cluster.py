"""Builds on a cluster of dask.distributed, whose workers see none of this machine's files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.build.remote_build import JobWithWeights

distributed = pytest.importorskip("distributed")


def apart() -> None:
    """Has this worker see no file of the machine that sends it work, as one elsewhere."""
    from pipeline.build import remote_build

    remote_build.can_read_weights = lambda path, index: False


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two workers in processes of their own, each with a folder of its own."""
    folder = str(tmp_path_factory.mktemp("workers"))
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "local_directory": folder}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=120)
        yield client


class Blocks(nn.Module):
    """Three engines with PyTorch between."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 4] -> [4, 4]"""
        for layer in self.layers:
            x = torch.linalg.pinv(layer(x).tanh() + 3 * torch.eye(4))
        return x


X = torch.randn(4, 4)


@pytest.mark.parametrize("shared", [True, False])
def test_a_cluster_builds_the_same_plans(client: Any, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shared:
        client.run(apart)
    seen: list[Any] = []
    sent: list[Any] = []
    send = JobWithWeights.from_job
    monkeypatch.setattr(JobWithWeights, "from_job", lambda job: sent.append(job.order.name) or send(job))
    compile = pipeline.default(min_block_size=1, build_executor=client.get_executor()).observed_by(seen.append)
    made = compile(Blocks().eval(), args=(X,))
    here = pipeline.default(min_block_size=1)(Blocks().eval(), args=(X,))
    assert len(made.engines) == 3
    assert sorted(sent) == ([] if shared else [engine.name for engine in here.engines])
    assert list(map(bytes, made.engines)) == list(map(bytes, here.engines))
    torch.testing.assert_close(made(X), here(X))
    assert [(e.done, e.total) for e in seen if e.kind == "progress" and e.stage == "build"] == [(1, 3), (2, 3), (3, 3)]


def test_what_a_worker_cannot_build_is_told_by_the_engine(client: Any) -> None:
    compile = pipeline.default(build_executor=client.get_executor(), immutable_weights=False)
    if torch.cuda.is_available():
        pytest.skip("engines that can be refitted are built where there is a GPU")
    with pytest.raises(pipeline.BuildError, match="engine_0: building a refittable engine"):
        compile(nn.Sequential(nn.Linear(4, 4)).eval(), args=(X,))


@pytest.mark.slow
def test_the_example_builds_ten_programs_for_three_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {"__name__": "example"}
    exec(source, names)
    names["main"]()
    assert len(list(tmp_path.glob("model-*.trtp"))) == 30
    with pytest.warns(pipeline.ArtifactWarning):
        loaded = pipeline.load(tmp_path / "model-24-8.9.trtp")
    assert loaded.settings.compute_capabilities == ("8.9",)
    assert loaded(torch.randn(2, 24)).shape == (2, 4)
