"""What all tests share: Hypothesis's profiles, one thread a process, seeds, and GPU tests only where there is a GPU."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import HealthCheck, settings

from pipeline.trt import CAPABILITIES
from tests.everyday import beyond_a_few, is_long, is_slow, not_their_turn
from tests.meta.process import kept

COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("quick", max_examples=4, derandomize=True, **COMMON)
settings.register_profile("ci", max_examples=15, derandomize=True, **COMMON)
settings.register_profile("dev", max_examples=100, **COMMON)
settings.register_profile("deep", max_examples=2000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

torch.set_num_threads(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` reads GPU tests only where there is a GPU; all other targets read them everywhere."""
    everyday = config.option.markexpr.startswith("not slow") and not torch.cuda.is_available()
    return True if everyday and collection_path == Path(__file__).parent / "gpu" else None


def pytest_collectstart() -> None:
    """Random tensors that a module makes when it is imported are the same in every run."""
    torch.manual_seed(1)


def pytest_runtest_setup() -> None:
    """So are a test's, whichever tests ran before it."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, what is not for every day is marked slow, and GPU tests are skipped without one."""
    items.sort(key=lambda item: not is_long(item.nodeid))
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    for item in (*not_their_turn(items), *beyond_a_few([item for item in items if not is_slow(item.nodeid)])):
        item.add_marker(pytest.mark.slow)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch sees none here"))


def pytest_collection_finish() -> None:
    """What is imported and collected stays: the collector does not look at it again, and at other things less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True)
def nothing_stays_changed() -> Iterator[None]:
    """What is shared with other tests is as it was when a test is over."""
    with kept():
        yield


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What nobody holds is freed at once, or not before the test is over."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def runs_nonzero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converters are chosen as for a TensorRT that runs NonZero layers: the package tensorrt."""
    able = attrs.evolve(CAPABILITIES, nonzero=True)
    for module in ("index_data", "lookup"):
        monkeypatch.setattr(f"pipeline.converters.{module}.CAPABILITIES", able)
