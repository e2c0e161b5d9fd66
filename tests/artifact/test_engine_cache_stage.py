"""The engine cache around ``build``: what is found is what would be built, and what is wrong in it is a warning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.artifact import engine_cache_stage as stage
from pipeline.artifact.engine_cache_stage import engine_requests
from pipeline.stages.build import build
from tests.artifact.test_engine_key import Model, Renamed, product

X, Y = torch.randn(4, 4), torch.randn(4, 4)


class Memory(dict[str, bytes]):
    """A store in memory."""

    def load(self, key: str) -> bytes | None:
        """The entry of a key."""
        return self.get(key)

    def save(self, key: str, data: bytes) -> None:
        """Keep an entry."""
        self[key] = data


@frozen
class Counted:
    """``build``, which counts the engines that it builds."""

    counts: list[int]
    name: str = "build"

    def __call__(self, converted: pipeline.Converted) -> pipeline.Built:
        """The engines."""
        self.counts.append(len(converted.networks))
        made: pipeline.Built = build(converted)
        return made


@pytest.fixture
def counts() -> Iterator[list[int]]:
    """How many engines each call built."""
    yield []


def compiled(model: nn.Module, store: Any, counts: list[int], **options: Any) -> pipeline.Compiled:
    """The model, compiled with a store."""
    made = pipeline.default(min_block_size=1).replace("build", pipeline.cached(store, Counted(counts), **options))
    result: pipeline.Compiled = made(model.eval(), (X, Y))
    return result


def test_a_hit_is_what_would_be_built(counts: list[int]) -> None:
    store, model = Memory(), Model(product)
    first, again = compiled(model, store, counts), compiled(copy.deepcopy(model), store, counts)
    assert (counts, len(store)) == ([1], 1)
    assert bytes(again.engines[0]) == bytes(first.engines[0])
    assert again.engines == first.engines
    assert again.report() == first.report()
    torch.testing.assert_close(again(X, Y), model(X, Y))


def test_another_model_is_a_miss(counts: list[int]) -> None:
    store = Memory()
    for model in (Model(product), Model(product, seed=1), Model(lambda x, y, w: y - x @ w)):
        torch.testing.assert_close(compiled(model, store, counts)(X, Y), model(X, Y))
    assert (counts, len(store)) == ([1, 1, 1], 3)


def test_other_names_are_a_hit_whose_plan_has_the_first_names(counts: list[int], tmp_path: Path) -> None:
    store = Memory()
    compiled(Model(product), store, counts)
    other = compiled(Renamed(product), store, counts)
    assert counts == [1]
    assert [tensor.name for tensor in other.networks[0].inputs] == ["left", "right"]
    (engine,) = other.engines
    assert dict(engine.bindings) == {"left": "x", "right": "y"}
    assert dict(engine.weights) == {"kernel": "weight"}
    other.save(tmp_path / "p.trtp")
    with pytest.warns(pipeline.ArtifactWarning):
        assert pipeline.load(tmp_path / "p.trtp").engines[0].bindings == engine.bindings


class Blocks(nn.Module):
    """The same block twice, with PyTorch between; a third is another."""

    def __init__(self, same: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = copy.deepcopy(self.first) if same else nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[4, 4], [4, 4] -> [4, 4]"""
        x = torch.linalg.pinv(x + 3 * torch.eye(4))
        x = torch.linalg.pinv(self.first(x).tanh() + 3 * torch.eye(4))
        x = torch.linalg.pinv(self.second(x).tanh() + 3 * torch.eye(4))
        return x * y


def test_an_engine_reads_sizes_that_the_host_computes(counts: list[int]) -> None:
    class Larger(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            once = nn.functional.interpolate(x, scale_factor=1.5)
            return torch.relu(nn.functional.interpolate(once[..., 1:], scale_factor=2.5))

    store = Memory()
    compile = pipeline.default(min_block_size=1).replace("build", pipeline.cached(store, Counted(counts)))
    x, sizes = torch.randn(1, 2, 8, 8), ({2: Dim("h", min=4, max=16), 3: Dim("w", min=4, max=16)},)
    for _ in range(2):
        module = compile(Larger(), (x,), dynamic_shapes=sizes).module("reference")
        for given in (x, x[:, :, :5, :7]):
            torch.testing.assert_close(module(given), Larger()(given))
    assert (counts, len(store)) == ([1], 1)


def test_equal_blocks_of_a_program_share_one_plan(counts: list[int]) -> None:
    store, model = Memory(), Blocks()
    made = compiled(model, store, counts)
    assert len(made.engines) > sum(counts) >= len(store)
    assert len({engine.digest for engine in made.engines}) < len(made.engines)
    assert [engine.name for engine in made.engines] == [network.name for network in made.networks]
    torch.testing.assert_close(made(X, Y), model(X, Y), rtol=1e-4, atol=1e-4)
    for engine, network in zip(made.engines, made.networks, strict=True):
        assert engine.bindings.keys() <= {tensor.name for tensor in (*network.inputs, *network.outputs)}
        assert engine.weights.keys() <= {weight.name for weight in network.weights}


def test_only_what_is_missing_is_built(counts: list[int]) -> None:
    store = Memory()
    made = compiled(Blocks(same=False), store, counts)
    lost = sorted(store)[0]
    del store[lost]
    again = compiled(Blocks(same=False), store, counts)
    assert counts[1:] == [1]
    assert lost in store
    assert [engine.digest for engine in again.engines] == [engine.digest for engine in made.engines]


@pytest.mark.parametrize("bad", [b"", b"nonsense" * 100, b"\0" * 60])
def test_a_corrupt_entry_is_dropped_with_a_warning(bad: bytes, counts: list[int]) -> None:
    store, model = Memory(), Model(product)
    compiled(model, store, counts)
    (key,) = store
    whole, store[key] = store[key], bad
    with pytest.warns(pipeline.ArtifactWarning, match="is deleted, not used"):
        torch.testing.assert_close(compiled(model, store, counts)(X, Y), model(X, Y))
    assert (counts, store[key]) == ([1, 1], whole)


def test_a_corrupt_file_is_dropped_with_a_warning(counts: list[int], tmp_path: Path) -> None:
    store, model = pipeline.DiskStore(tmp_path), Model(product)
    compiled(model, store, counts)
    (path,) = tmp_path.glob("*.engine")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.warns(pipeline.ArtifactWarning, match="is deleted, not used: the engine's plan was altered"):
        compiled(model, store, counts, keep=False)
    assert not list(tmp_path.glob("*.engine"))


def test_a_store_that_fails_is_a_warning(counts: list[int]) -> None:
    class Broken:
        def load(self, key: str) -> bytes | None:
            raise OSError("no network")

        def save(self, key: str, data: bytes) -> None:
            raise OSError("no network")

    with pytest.warns(pipeline.ArtifactWarning, match="no network") as said:
        compiled(Model(product), Broken(), counts)
    told = [str(warning.message) for warning in said]
    assert "engine_0 is built" in told[0]
    assert "cannot be saved" in told[-1]
    assert counts == [1]


def test_reuse_and_keep_are_told_apart(counts: list[int]) -> None:
    store, model = Memory(), Model(product)
    compiled(model, store, counts, keep=False)
    assert not store
    compiled(model, store, counts, reuse=False)
    compiled(model, store, counts, reuse=False)
    compiled(model, store, counts, keep=False)
    assert (counts, len(store)) == ([1, 1, 1], 1)


def test_settings_ask_for_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    pipeline.default()(Model(product).eval(), (X, Y))
    assert not list(tmp_path.iterdir()), "it is off by default"
    pipeline.default(cache_built_engines=True)(Model(product).eval(), (X, Y))
    assert len(list((tmp_path / "engines").glob("*.engine"))) == 1
    monkeypatch.setattr(stage, "build", None)
    both = {"cache_built_engines": True, "reuse_cached_engines": True}
    for place in (None, tmp_path / "engines", f"file://{tmp_path / 'engines'}"):
        made = pipeline.default(**both, engine_cache_dir=place)["build"].function
        assert (made.reuse, made.keep) == (True, True)
    assert isinstance(made.store, pipeline.FsspecStore)
    assert pipeline.default(**both, engine_cache_size=9)["build"].function.store == pipeline.DiskStore(size=9)


def test_other_weights_are_a_miss_where_no_engine_can_be_refitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that can be refitted, which needs a GPU to be built, is found with the same weights; with others it is
    refitted."""
    refit = pipeline.default(immutable_weights=False).until("convert")
    one, same, other = (next(iter(engine_requests(refit(Model(product, seed=s).eval(), (X, Y))))) for s in (0, 0, 1))
    fixed = build(pipeline.default().until("convert")(Model(product).eval(), (X, Y))).engines[0]
    entry = one.cache_entry_of(fixed)
    assert one.key == other.key
    assert same.engine_from_entry(entry, bytes(fixed)) is not None
    monkeypatch.setattr(stage, "has_gpu", lambda: False)
    assert other.engine_from_entry(entry, bytes(fixed)) is None
    given: list[Any] = []
    monkeypatch.setattr(stage, "has_gpu", lambda: True)
    monkeypatch.setattr(stage, "refit", lambda engine, weights, changed: given.append((weights, changed)) or engine)
    assert other.engine_from_entry(entry, bytes(fixed)) is not None
    assert given[0][1] == {"weight"}
    assert torch.equal(given[0][0]["weight"], Model(product, seed=1).weight)


def test_a_cache_that_no_other_process_can_lock_is_used_all_the_same(
    counts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    store = pipeline.DiskStore(tmp_path)
    with pytest.warns(pipeline.ArtifactWarning, match="two processes may build"):
        compiled(Model(product), store, counts)
    compiled(Model(product), store, counts)
    assert counts == [1]
