"""Makes functions of the sources of kernels, with the C++ compiler of the machine."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.emulator.plan import NotEmulated
from pipeline.trt import trt

HERE: Final = Path(__file__).parent
COMPILER: Final = shutil.which("g++") or shutil.which("c++")
"""The C++ compiler, if the machine has one."""

_HEADER = re.compile(rb"#ifndef ([A-Z0-9_]+_H)\n#define \1\b")
_SHARED: Final = re.compile(rb"reduc|norm|cumsum|topk|softmax")
_DEFINITION = re.compile(r"^(?:template<>\s*)?__forceinline__ __device__ \S+ (\w+)\(.*$", re.M)
_SIGNATURE = re.compile(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^{]*)\)\s*\{")
_MEMORY = re.compile(r"extern __align__\(\d+\) __shared__ char smem\[\];")
_DIVISION = re.compile(r'asm\("\{ div\.approx\.f32 %0, %1, %2; \}" : "=f"\((\w+)\) : "f"\((\w+)\), "f"\((\w+)\)\);')
"""The instruction that definitions write themselves."""
_ENTRY = """
#include "fibers.h"
static void **given;
static void body() {{ {name}({args}); }}
extern "C" bool run(void **args, const unsigned *grid, const unsigned *block, bool together) {{
  given = args;
  return launch(grid, block, together, body);
}}
"""


@cache
def _work() -> tempfile.TemporaryDirectory[str]:
    """The headers, as a compiler finds them."""
    folder = tempfile.TemporaryDirectory(prefix="emulator-")
    path = Path(folder.name)
    for own in (*HERE.glob("*.h"), *HERE.glob("*.cuh")):
        shutil.copy(own, path / own.name)
    library = _library().read_bytes()
    for header in _HEADER.finditer(library):
        name = header[1].lower().removesuffix(b"_h") + b".h"
        start, end = library.rfind(b"\0", 0, header.start()) + 1, library.find(b"\0", header.start())
        if _SHARED.search(name) and not (path / name.decode()).exists():
            (path / name.decode()).write_bytes(library[start:end])
    subprocess.run(_command(path, "-x", "c++-header", str(path / "cuda.h")), check=True)
    return folder


def _library() -> Path:
    """TensorRT's library that is loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    assert trt is not None
    found = [line.split()[-1] for line in maps if re.search(r"/libtensorrt_rtx\.so[^/]*$", line)]
    if not found:
        raise NotEmulated("plans of another TensorRT")
    return Path(found[0])


def _command(path: Path, *more: str) -> list[str]:
    if COMPILER is None:
        raise NotEmulated("no C++ compiler is here")
    flags = ["-std=c++17", "-w", "-O0", "-fPIC", "-fno-strict-aliasing", "-fpermissive"]
    return [COMPILER, *flags, "-I", str(path), *more]


def functions(sources: Iterable[str]) -> dict[str, Any]:
    """The functions of these kernels, by name: (arguments, grid, block, whether threads exchange values).

    Raises:
        NotEmulated: no compiler, or it does not take one of them.
    """
    folder = Path(_work().name)
    started = []
    for source in sources:
        name = _kernel(source)[0]
        file = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.cc"
        file.write_text(_program(source), encoding="utf-8")
        command = _command(folder, "-shared", "-o", str(file.with_suffix(".so")), str(file))
        started.append((name, file, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
    made = {}
    for name, file, process in started:
        _, said = process.communicate()
        if process.returncode:
            first = next((line for line in said.splitlines() if "error:" in line), said)
            raise NotEmulated(f"{name}: {first}")
        made[name] = ctypes.CDLL(str(file.with_suffix(".so"))).run
        made[name].restype = ctypes.c_bool
    return made


def _kernel(source: str) -> tuple[str, list[str]]:
    """The kernel's name, and the types of its parameters."""
    found = _SIGNATURE.search(source)
    if found is None:
        raise NotEmulated("a kernel of an unknown form")
    parameters = [re.sub(r"__restrict__|\bconst\b", "", each).strip() for each in found[2].split(",") if each.strip()]
    return found[1], [each.rsplit(None, 1)[0].strip() for each in parameters]


def _program(source: str) -> str:
    """A kernel with the definitions that it uses, and an entry."""
    place = source.index("__global__ void ")
    head, body = source[:place], _MEMORY.sub("", source[place:])
    name, types = _kernel(source)
    args = [f"({t})given[{i}]" if "*" in t else f"*({t} *)given[{i}]" for i, t in enumerate(types)]
    includes = [line for line in head.splitlines() if line.startswith("#include") and "<" not in line]
    entry = _ENTRY.format(name=name, args=", ".join(args))
    return "\n".join(['#include "cuda.h"', *includes, *_used(head, body), body, entry])


def _used(head: str, body: str) -> list[str]:
    """The definitions of a source that its kernel uses, those that they use first."""
    known: dict[str, list[str]] = {}
    for line in _DEFINITION.finditer(head):
        known.setdefault(line[1], []).append(_DIVISION.sub(r"\1 = \2 / \3;", line[0]))
    found: list[str] = []
    seen: set[str] = set()
    while names := [name for name in known if name not in seen and re.search(rf"\b{name}\b", body)]:
        seen.update(names)
        body = "\n".join(line for name in names for line in known[name])
        found.insert(0, body)
    return found
