"""Runs engines without a GPU: the kernels of a plan, from their sources, on a CPU.

A plan of TensorRT-RTX holds the CUDA source of each kernel that it generates, the calls with their arguments, and where
tensors lie in memory. A C++ compiler makes functions of the sources, and the threads of a block are fibers, so that a
kernel that is wrong on a GPU is wrong here in the same way. The templates that kernels share (reductions, running sums)
are in TensorRT's library, as text. The formats are undocumented, so nothing of the product depends on this.

    from benchmarks.emulator import emulated

    with emulated():
        compiled.module("reference")(*args)     # NotEmulated where a plan has other kernels than these

Products, convolutions and attention have no source, and sizes that vary are computed by another program: engines with
these are not emulated. Plans for several compute capabilities hold a program for each, of which the first one runs.
"""

from benchmarks.emulator.engine import COMPILER, emulated, run
from benchmarks.emulator.plan import NotEmulated

__all__ = ["COMPILER", "NotEmulated", "emulated", "run"]
