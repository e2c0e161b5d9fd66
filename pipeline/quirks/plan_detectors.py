"""Detect kernels with known bugs in an engine's plan.

Plans contain descriptions and sources of kernels in an undocumented format. So a finding is only a warning, and a plan
without findings may still be wrong.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

_CALL = re.compile(
    rb"function=\{ name=\S+ fqn=(?P<name>\S+) args=\{(?P<args>[^}]*)\}"
    rb"[^\n]*? output_args=\{(?P<written>[^}]*)\}[^\n]*? grid = \{(?P<grid>[^}]*)\}"
)
_SOURCE = re.compile(rb"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(")
_NAME = re.compile(rb'"([^"]*)"')
_EMPTY = re.compile(rb'tensor=\{ [^\n]*?dims=\{(?: [^}]*)? 0 [^}]*\}[^\n]*? name="([^"]*)"')


Plan: TypeAlias = Any
"""A serialized TensorRT engine: bytes, or a buffer with a ``find`` method."""
KernelOffsets: TypeAlias = Mapping[bytes, int]
"""The offset of each kernel's source in a plan, by kernel name (`find_kernel_offsets`)."""


_WEIGHTS = re.compile(rb"THGW\0{4}(.{16})", re.DOTALL)
"""The weights in the table of sections with which a plan of TensorRT-RTX begins: a tag, the offset, and the size."""


def without_weights(plan: Plan) -> Plan:
    """Return the part of a serialized engine before its weights, which describe no kernels: each search of 1 GB takes
    0.2 s, while other threads wait for the interpreter. Return the whole plan if the weights are not its end."""
    found = _WEIGHTS.search(plan[:256])
    start, size = struct.unpack("<QQ", found[1]) if found else (0, 0)
    return plan[:start] if found and found.end() <= start and 0 <= len(plan) - start - size <= 8 else plan


def find_kernel_offsets(plan: object) -> KernelOffsets:
    """Return the offset of each kernel's source in a serialized engine, by kernel name."""
    found: dict[bytes, int] = {}
    for each in _find_matches(_SOURCE, b"__global__ void ", plan):
        found.setdefault(each[1], each.start())
    return found


def find_unwritten_results(plan: object, sources: KernelOffsets) -> tuple[tuple[str, str], ...]:
    """Return (kernel, tensor), by names, for each result that a kernel of a plan (a serialized engine) never writes, so
    that later kernels read uninitialized memory (`unwritten-results`). ``sources``: from `find_kernel_offsets`; kernels
    without a source are not checked. Empty tensors are not reported."""
    calls = [call for call in _find_matches(_CALL, b"function={ name=", plan) if b"0" not in call["grid"].split()]
    found = [
        (call["name"], tensor)
        for call in calls
        if call["name"] in sources
        for tensor in _unwritten_outputs(plan, sources[call["name"]], call)
    ]
    empty = {each[1] for each in _find_matches(_EMPTY, b"tensor={ ", plan)} if found else set()
    return tuple((kernel.decode(), tensor.decode()) for kernel, tensor in found if tensor not in empty)


def _unwritten_outputs(plan: Plan, source_start: int, call: re.Match[bytes]) -> list[bytes]:
    """Return the outputs of a kernel call that the kernel's source, at ``source_start`` in the plan, never mentions."""
    head, _, body = plan[source_start : plan.find(b"\0", source_start)].partition(b")\n{")
    parameters = [*zip(_NAME.findall(call["args"]), re.findall(rb"__v\d+", head), strict=False)]
    mentioned = {argument for argument, p in parameters if re.search(p + rb"\b", body)}
    return [tensor for tensor in _NAME.findall(call["written"]) if tensor not in mentioned]


_ROUNDED = re.compile(
    rb'runtime_fusion=\{ name=(?P<name>\S+Cast) [^\n]*output_args=\{ "(?P<tensor>[^"]*)"[^\n]*backbone=(?:gemm|conv)'
)
_HALVES = re.compile(rb'tensor=\{[^\n]*name="([^"]*)"[^\n]*type=bf16')


def find_rounded_matmuls(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return (kernel, its result), by names, for the matmul kernels of a plan that end with a cast to bfloat16 and so
    have the bug `halves-behind-matmuls`."""
    return _kernels_by_result(plan, _ROUNDED, True)


def _kernels_by_result(plan: Plan, pattern: re.Pattern[bytes], returns_bfloat16: bool) -> tuple[tuple[str, str], ...]:
    """Return names (kernel, result) for kernels that match a pattern; ``returns_bfloat16``: whether results must be."""
    found = [(each["name"], each["tensor"]) for each in _find_matches(pattern, b"runtime_fusion={ name=", plan)]
    halves = {each[1] for each in _HALVES.finditer(plan)} if found else set()
    return tuple((name.decode(), tensor.decode()) for name, tensor in found if (tensor in halves) is returns_bfloat16)


_WIDENED_AGAIN = re.compile(
    rb"runtime_fusion=\{ name=(?P<name>\S*Deco\S*Cast\S*Cast\S*) "
    rb'[^\n]*output_args=\{ "(?P<tensor>[^"]*)"[^\n]*backbone=deconv'
)


def find_rounded_deconvolutions(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the deconvolution kernels that round to bfloat16 but return another dtype (`rounded-deconvolutions`)."""
    return _kernels_by_result(plan, _WIDENED_AGAIN, False)


_STEPS = re.compile(rb"for \(int __v\d+ = 0; __v\d+ < (\d+);")


def find_queries_of_other_batches(plan: Plan, sources: KernelOffsets) -> tuple[str, ...]:
    """Return the names of the attention kernels with a single query that read keys of other batches (`lone-queries`):
    they take keys as sorted by batch, although a kernel of the plan has swapped batches and rows. ``sources``: from
    `find_kernel_offsets`."""
    found = {name: start for name, start in sources.items() if name.startswith(b"_gemv_mha")}
    if not found or plan.find(b"ReshTranResh") < 0:
        return ()
    return tuple(name.decode() for name, start in found.items() if _indexes_batch_by_batch(plan, start))


def _indexes_batch_by_batch(plan: Plan, source_start: int) -> bool:
    """Return whether an attention kernel, with the source at ``source_start``, takes the keys of each batch to follow
    those of the batch before. A dynamic number of keys hides that, and counts as yes."""
    source = plan[source_start : plan.find(b"\0", source_start)]
    keys = max((int(steps) for steps in _STEPS.findall(source)), default=0)
    return not keys or re.search(rb"= \(__v\d+ \* %d\) \+ __v\d+;" % keys, source) is not None


_HALVES_OF_MASKED = re.compile(rb"_hmma_fp16_traits,\n.*\n\ttrue, // has add mask", re.DOTALL)


def find_float16_attention_sums(plan: Plan, sources: KernelOffsets) -> tuple[str, ...]:
    """Return the names of the attention kernels that add a mask and sum in float16 (`masked-attention-sums`).
    ``sources``: the offset of each kernel's source in the plan, from `find_kernel_offsets`."""
    found = ((name, plan[plan.rfind(b"\0", 0, start) : start]) for name, start in sources.items() if b"_mha" in name)
    return tuple(name.decode() for name, source in found if _HALVES_OF_MASKED.search(source))


_WITH_BIAS = re.compile(rb'fully_connected=\{ name="(?P<name>[^"]*)"[^\n]* bias=true ')
_FUSED = re.compile(rb"runtime_fusion=\{ name=(?P<name>\S+) input_args=\{(?P<args>[^}]*)\}")
_OF_TWO = re.compile(rb"Add|Mul|Sub|Div|Max|Min|Pow|Sele|Equ|Gtr|Lt|And|Or")


def find_matmuls_with_bias(plan: Plan) -> tuple[str, ...]:
    """Return the names of matmul kernels whose bias is part of the matmul, not a separate operation of the kernel:
    TensorRT-RTX 1.6 forgets to add such a bias on an H100 (`biases-of-matmuls`).

    Some plans do not state the bias. Then a kernel counts if it has more inputs than the operations in its name need. A
    kernel with an operation that reads a number in place of a tensor has fewer inputs, and may be missed.
    """
    found = [each["name"].decode() for each in _find_matches(_WITH_BIAS, b"fully_connected={ name=", plan)]
    fused = _find_matches(_FUSED, b"runtime_fusion={ name=", plan)
    kernels = [kernel for kernel in fused if kernel["name"].startswith(b"__myl_Fc")]
    read = [sum(b"proxy" not in name for name in _NAME.findall(each["args"])) for each in kernels]
    more = (each for each, count in zip(kernels, read, strict=True) if count - 2 > len(_OF_TWO.findall(each["name"])))
    return tuple(dict.fromkeys([*found, *(each["name"].decode() for each in more)]))


def find_confused_matmuls(plan: Plan) -> tuple[str, ...]:
    """Return the names that several matmul kernels with a multiplication share, although they take different numbers of
    dynamic sizes as arguments. TensorRT-RTX 1.4 and 1.5 run one of these kernels with the arguments of another if the
    sizes are equal at run time (`factors-of-matmuls`)."""
    taken: dict[bytes, set[int]] = {}
    for each in _find_matches(_FUSED, b"runtime_fusion={ name=", plan):
        taken.setdefault(each["name"], set()).add(each["args"].count(b"proxy"))
    return tuple(name.decode() for name, counts in taken.items() if b"Mul" in name and len(counts) > 1)


_COPIED = re.compile(rb"__myl_(?:Move|Resh|Tran)+_")
_CAST = re.compile(rb"__myln_int32\((\w+)\)")
_INDEX = re.compile(
    rb"__myln_int32 (?P<name>__v\d+) = "
    rb"\(?(?P<of>__v\d+)(?: / (?P<by>[\w *()]+?))?\)?(?: % (?P<within>\w+))?;"
)
_READ = re.compile(rb"= \(\(__myln_\w+\*\)__v\d+\)\[([^\]]*)\]")


def find_copies_of_first_batch(plan: Plan, sources: KernelOffsets) -> tuple[str, ...]:
    """Return the names of the kernels that copy the first batch in place of each batch (`transposed-matmuls`): they
    divide the batch's index by the number of rows, and so get 0. ``sources``: from `find_kernel_offsets`."""
    found = ((name, plan[start : plan.find(b"\n}\n", start)]) for name, start in sources.items() if _COPIED.match(name))
    names = (name.decode().removesuffix("_com") for name, source in found if _reads_only_first_batch(source))
    return tuple(dict.fromkeys(names))


def _reads_only_first_batch(source: bytes) -> bool:
    """Return whether a kernel reads at a batch index that a division makes 0, such as ``batch % n / rows``, if ``rows``
    is at least ``n``, or ``batch % n / rows % n``."""
    below: dict[bytes, bytes] = {}
    divided: dict[bytes, bytes] = {}
    lost: set[bytes] = set()
    for each in _INDEX.finditer(_CAST.sub(rb"\1", source)):
        name, by, within = each["name"], each["by"] or b"1", each["within"]
        size = divided.get(each["of"]) if by == b"1" else below.get(each["of"])
        if (
            size is not None
            and size != b"1"
            and (size == within if within else size.isdigit() and by.isdigit() and int(size) <= int(by))
        ):
            lost.add(name)
        if within:
            below[name] = within
        elif size is not None:
            divided[name] = size
    read = b" ".join(_READ.findall(source))
    return any(re.search(rb"%b\b" % name, read) for name in lost)


_KEPT = re.compile(rb"\[\(index - threadIdx\.x\) / \d+\]( = )?")
_COUNTED = re.compile(rb"\(index/\w+\)%(\w+)")
_VARYING = re.compile(rb"(__v\d+) = \(__myln_int32\)reinterpret_cast<__myln_int64>\((live_inouts\[\d+\])\)")


def find_misplaced_registers(plan: Plan, sources: KernelOffsets) -> tuple[str, ...]:
    """Return the names of the reduction kernels that read registers of threads that did not set them
    (`broadcast-in-reductions`). ``sources``: from `find_kernel_offsets`."""
    found = ((name, plan[start : plan.find(b"\0", start)]) for name, start in sources.items())
    names = (name.decode().removesuffix("_com") for name, source in found if _reads_unset_registers(source))
    return tuple(dict.fromkeys(names))


def _reads_unset_registers(source: bytes) -> bool:
    """Return whether a kernel's source may read registers that it did not set: a loop that writes outputs reads them,
    but no loop that reads inputs has the same sizes and sets them."""
    known: list[Counter[bytes]] = []
    used: list[Counter[bytes]] = []
    for function in source.split(b"template<> __device__ "):
        varying = dict(_VARYING.findall(function))
        steps = function.split(b"if(index < ")
        sizes = [Counter(varying.get(n, n) for n in _COUNTED.findall(step) if n != b"1") for step in steps]
        if b"read_input" in function[: function.find(b"(")] and any(each[1] for each in _KEPT.finditer(function)):
            known += sizes[:1]
        elif b"write_output" in function[: function.find(b"(")]:  # sizes precede a step's condition
            used += [sizes[max(at - 1, 0)] for at, step in enumerate(steps) if _KEPT.search(step)]
    return not all(any(size <= each for each in known) for size in used)


def _find_matches(pattern: re.Pattern[bytes], prefix: bytes, plan: Plan) -> Iterator[re.Match[bytes]]:
    """Yield the matches in a plan of a pattern that begins with ``prefix``. Searching the plan's weights for a literal
    is twice as fast as for a pattern: 0.02 s for 100 MB."""
    at = plan.find(prefix)
    while at >= 0:
        found = pattern.match(plan, at)
        if found is not None:
            yield found
        at = plan.find(prefix, found.end() if found else at + len(prefix))
