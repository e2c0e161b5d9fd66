"""Compile a file of TorchScript, of which nobody has the Python any more."""

import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

import pipeline


def main() -> None:
    """Write such a file, load it as torch does, compile it for any number of rows up to 8."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval().requires_grad_(False)
    rows = pipeline.Input(min_shape=(1, 8), max_shape=(8, 8))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        torch.jit.trace(model, torch.ones(2, 8)).save(Path(folder) / "model.pt")
        script = torch.jit.load(Path(folder) / "model.pt")
        compiled = pipeline.compile(script, args=(rows,))
    x = torch.randn(5, 8)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)
    print(compiled)


if __name__ == "__main__":
    main()
