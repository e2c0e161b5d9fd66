"""The servers of examples/serving answer as the program does, on stand-ins for libraries; the soak finds faults."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.soak import soak
from tests.docs.test_examples import DOCS, blocks

FOLDER = DOCS.parent / "examples" / "serving"
ROWS = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, torch.nn.Module]]:
    """A folder with the page's program, and its model."""
    path = tmp_path_factory.mktemp("serving")
    first, *_ = blocks((DOCS / "serving.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(path)
    try:
        exec(first, names)
        yield path, names["model"]
    finally:
        os.chdir(before)


def module(name: str, **contents: Any) -> ModuleType:
    """A module with these names."""
    made = ModuleType(name)
    vars(made).update(contents)
    return made


def same(function: Any) -> Any:
    """A decorator that changes nothing."""
    return function


def one_by_one(function: Any) -> Any:
    """Call a function of a batch with batches of one, as Ray Serve does with a request that has no company."""

    async def answer(self: Any, row: Any) -> Any:
        (found,) = await function(self, [row])
        return found

    return answer


class App:
    """FastAPI's class, as far as the page uses it."""

    def __init__(self, lifespan: Any) -> None:
        self.lifespan = lifespan

    def post(self, path: str) -> Any:
        """Leave the function as it is."""
        return same


class Deployment:
    """Ray Serve's decorated class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def bind(self) -> Any:
        """Create the object that Ray would."""
        return self.kind()


LIBRARIES = (
    module("fastapi", FastAPI=App),
    module("pydantic", Field=lambda **limits: limits),
    module("ray", serve=SimpleNamespace(deployment=lambda **options: Deployment, batch=lambda **options: one_by_one)),
    module("bentoml", service=same, api=lambda **options: same),
)


def served(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a file defines."""
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library.__name__, library)
    names: dict[str, Any] = {"__name__": name}
    exec(compile((FOLDER / name).read_text(encoding="utf-8"), name, "exec"), names)
    return names


def answered(folder: tuple[Path, torch.nn.Module], found: Any) -> None:
    torch.testing.assert_close(torch.tensor(found), folder[1](ROWS).detach(), rtol=1e-4, atol=1e-5)


def test_fastapi(folder: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait are one call; an error is that of each request in the call, and the next is answered."""
    names = served("serve_http.py", monkeypatch)
    sizes, run = [], names["run"]

    def counted(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return run(rows)

    async def calls() -> tuple[list[Any], list[Any]]:
        async with names["lifespan"](names["app"]):
            names["run"] = counted
            found = await asyncio.gather(*map(names["predict"], ROWS.tolist()))
            bad = await asyncio.gather(names["predict"]([1.0]), return_exceptions=True)
            return [*found, await names["predict"](ROWS[0].tolist())], bad

    (*found, last), (bad,) = asyncio.run(calls())
    answered(folder, found)
    assert sizes == [32, 8, 1, 1] and "input" in str(bad) and last == pytest.approx(found[0], rel=1e-4)


def test_ray_serve(folder: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    app = served("serve_ray.py", monkeypatch)["app"]

    async def answer(row: list[float]) -> Any:
        async def body() -> list[float]:
            return row

        return await app(SimpleNamespace(json=body))

    async def calls() -> list[Any]:
        return [await answer(row) for row in ROWS.tolist()]

    answered(folder, asyncio.run(calls()))


def test_bentoml(folder: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    model = served("serve_bento.py", monkeypatch)["Model"]()
    answered(folder, [model.predict(part.double().numpy()).tolist()[0] for part in ROWS.split(1)])


class Doubles(BaseHTTPRequestHandler):
    """Answers a row with its double; every seventh time with something else, if the server is bad."""

    protocol_version = "HTTP/1.1"
    bad, count = False, 0

    def do_POST(self) -> None:
        """Answer."""
        type(self).count += 1
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wrong = self.bad and self.count % 7 == 0
        text = json.dumps([2 * x + wrong for x in row]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize("bad", [False, True])
def test_a_soak_counts_answers_that_change(bad: bool) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Doubles,), {"bad": bad}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        found = soak(f"http://127.0.0.1:{server.server_port}/", [os.getpid()], 4, 0.6, 3)
    finally:
        server.shutdown()
        server.server_close()
    assert found["requests"] > 20 and found["milliseconds"]["p99"] >= found["milliseconds"]["p50"] > 0
    assert bool(found["faults"]) is bad and found["memory_mb"][0] > 50
