"""The demo, on small models: what it promises, and that it says so where a promise is not kept."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from examples import demo
from examples.models import small


def shown(monkeypatch: pytest.MonkeyPatch | None = None) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=120)
    code = demo.main(small, console)
    return code, console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_every_promise_is_kept() -> None:
    code, text = shown()
    assert code == 0, text
    for line in ("ResNet-50", "BERT-base", "engines", "build, s", "relative error, batch 8"):
        assert line in text
    assert "Each model is one engine" in text


def test_a_large_error_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LIMITS", {"reference": -1.0, "tensorrt": -1.0})
    monkeypatch.setattr(demo, "MODELS", {"ResNet-50": "resnet18"})
    code, text = shown()
    assert code == 1
    assert "ResNet-50: the error at batch 3 is" in text
    assert "Each model is one engine" not in text
