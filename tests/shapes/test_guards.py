"""What a model asks about sizes is a condition of its program; what operators ask to lay out memory is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import pipeline
from pipeline.shapes import guard_provenance
from pipeline.testing import TensorSpec, check_model

ROOT = Path(__file__).parents[2]
WEIGHTS = TensorSpec((2, 8, 4), seed=1)


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return self.function(x, *others)


def part(x: torch.Tensor) -> torch.Tensor:
    """Rows of 8, each ``n + 3`` behind the one before it: they lie one behind the other if n is 5."""
    return torch.cat([x, x[..., :3]], -1)[..., :8]


MERGED: dict[str, Callable[..., torch.Tensor]] = {
    "einsum": lambda x, w: torch.einsum("bnc,bck->bnk", part(x), w),
    "einsum of rows": lambda x, w: torch.einsum("bnc,bnk->bkc", part(x), w.mT[:, :4]),
    "einsum with one weight": lambda x, w: torch.einsum("bnc,ck->bnk", part(x), w[0]),
    "contiguous": lambda x, w: part(x).contiguous() + w.mT,
    "reshape": lambda x, w: part(x).reshape(-1) + w.reshape(-1),
    "reshape of one dim": lambda x, w: part(x).reshape(2, 2, 2, 8).amax(2) + w[0, 0, 0],
    "matmul": lambda x, w: torch.matmul(part(x)[None], w),
    "linear": lambda x, w: nn.functional.linear(part(x), w[0].T.contiguous()),
}


@pytest.mark.parametrize("name", MERGED)
def test_a_memory_layout_is_no_condition(name: str, caplog: pytest.LogCaptureFixture) -> None:
    args = (TensorSpec((2, 4, "n")), WEIGHTS)
    compiled = check_model(lambda: Calls(MERGED[name]), args, sizes={"n": (5, 12, 32)})
    (n,) = compiled.program.shapes.values()
    assert (n.min, n.max) == (5, 32) and not compiled.program.shapes.relations
    assert "can only range" not in caplog.text


FOURIER: dict[str, Callable[..., torch.Tensor]] = {
    "real": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]),
    "complex": lambda x: torch.fft.ifftn(torch.fft.fftn(x.mT)).real,
    "of rows": lambda x: torch.fft.fft(x.mT, dim=1).abs(),
    "of columns": lambda x: torch.fft.rfft(x, dim=0).abs(),
    "in stacks": lambda x: torch.fft.fftn(torch.stack([x[:, :1] + x, x.exp()]).permute(2, 0, 1)).real,
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", FOURIER)
def test_the_layout_of_a_fourier_transform_is_no_condition(name: str, device: str) -> None:
    dims = {i: torch.export.Dim(name, min=1, max=40) for i, name in enumerate("hw")}
    program = pipeline.capture(Calls(FOURIER[name]), (torch.randn(6, 12),), None, (dims,), device=device)
    assert {(r.min, r.max) for r in program.shapes.values()} == {(1, 40)} and not program.shapes.relations


def by_one(x: torch.Tensor) -> torch.Tensor:
    y = x.mT.reshape(-1)
    return y * 2 if x.shape[1] == 1 else y


def by_one_after_a_copy(x: torch.Tensor) -> torch.Tensor:
    y = x.mT.contiguous()
    return y * 2 if x.shape[1] == 1 else y


def by_the_layout_of_eight(x: torch.Tensor) -> torch.Tensor:
    y = x[..., :8].reshape(-1)
    return y * 2 if x.shape[1] + 3 == 11 else y


def by_an_assertion(x: torch.Tensor) -> torch.Tensor:
    y = x.mT.reshape(-1)
    torch._check(x.shape[1] != 1)
    return y


class Inside(nn.Module):
    """A module asks that is called by another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] == 1 else x


class Outside(nn.Module):
    """An operator asks first, outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Inside()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mT.reshape(-1)[:4] + self.inside(x)[:, :1].sum()


ASKED: dict[str, tuple[nn.Module, int]] = {
    "one": (Calls(by_one), 1),
    "one, after a copy": (Calls(by_one_after_a_copy), 1),
    "eight": (Calls(by_the_layout_of_eight), 8),
    "an assertion": (Calls(by_an_assertion), 1),
    "a module inside": (Outside(), 1),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_model_asks_is_a_condition(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also if an operator asked the same before it: torch notes who asked first."""
    model, least = ASKED[name]
    sizes = pipeline.Input(min_shape=(4, least), opt_shape=(4, 12), max_shape=(4, 32))
    program = pipeline.capture(model.eval(), (sizes,))
    (n,) = program.shapes.values()
    assert (n.min, n.max) == (least + 1, 32)
    assert f"from {least + 1} to 32, not {least} to 32" in caplog.text


class Decoder(nn.Module):
    """Asks whether there is one token, to choose how it attends, and without a mask, whether there is one row; its
    groups of heads share keys."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=8, **heads))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(ids) if self.masked else None
        logits: torch.Tensor = self.model(ids, attention_mask=mask, use_cache=False).logits
        return logits


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "no mask"])
def test_how_transformers_attends_is_no_condition(masked: bool) -> None:
    ids = TensorSpec(("b", "n"), torch.int64, ("below", 30))
    compiled = check_model(lambda: Decoder(masked), (ids,), sizes={"b": (1, 2, 4), "n": (1, 7, 16)})
    assert [(r.min, r.max) for r in compiled.program.shapes.values()] == [(1, 4), (1, 16)]


class Attends(nn.Module):
    """Attends as transformers does, to keys of which there may be more than queries."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        module = nn.Module()
        return sdpa_attention_forward(module, q, k, k, None)[0]


def test_one_query_sees_all_keys(caplog: pytest.LogCaptureFixture) -> None:
    """And the first of several sees one."""
    sizes = {"n": (1, 4, 4), "m": (4, 5, 9)}
    args = (TensorSpec((1, 2, "n", 8)), TensorSpec((1, 2, "m", 8), seed=1))
    compiled = check_model(Attends, args, sizes=sizes)
    assert [(r.min, r.max) for r in compiled.program.shapes.values()] == [(2, 4), (4, 9)]


SEVERAL = """
import torch, pipeline
from torch.export import Dim
from pipeline.stages.unbuilt import unbuilt
class Padded(torch.nn.Module):
    def forward(self, image, mask):
        h, w = image.shape[2] // 8, image.shape[3] // 8
        rows = torch.nn.functional.pad(image, (0, (8 - w % 8) % 8, 0, (8 - h % 8) % 8))
        return rows.mean((2, 3)) + mask.sum(1, keepdim=True), rows[:, :, ::8, ::8]
batch, h, w = Dim("b", min=1, max=4), 8 * Dim("h", min=2, max=9), 8 * Dim("w", min=2, max=9)
dims = ({0: batch, 2: h, 3: w}, {0: batch, 1: Dim("n", max=9)})
args = (torch.rand(2, 3, 32, 48), torch.rand(2, 5))
program = pipeline.capture(Padded().eval(), args, dynamic_shapes=dims)
compiled = pipeline.default().replace("build", unbuilt)(program)
print(program.graph, program.shapes, *compiled.networks, sep="\\n")
"""


def test_programs_print_alike_whatever_pythons_hashes_are() -> None:
    """torch keeps symbols and what it knows of them in sets; seeds 1 and 8 ordered them differently."""
    told = []
    for seed in ("1", "2", "8"):
        environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "PATH": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", SEVERAL]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told[0] == told[1] == told[2] and "profile" in told[0]


def test_the_files_that_questions_pass_through_are_there() -> None:
    assert all(Path(file).is_file() for file in guard_provenance._FRAMEWORK_FILES - {"<string>"})
