"""``Compiled``: the result of a compilation, a frozen record that can be called."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from attrs import field, frozen

from pipeline.aten.own_ops import OPEN_MASK
from pipeline.errors import Fallback, Unreached, missing_attribute_error
from pipeline.frozen import FrozenDict
from pipeline.network.description import Network
from pipeline.network.engine import Engine
from pipeline.network.pairs import Pair, find_quantized_pairs
from pipeline.program import Partitioned, Program, input_and_output_lines, segment_lines
from pipeline.recipes import Recipe, qualified_name
from pipeline.records.agreement import Agreement, Healed
from pipeline.records.costs import StageCost
from pipeline.records.kernels import NO_KERNELS, Kernels
from pipeline.records.profile import Profile
from pipeline.records.wording import refuse_assignment
from pipeline.settings import CompilationSettings

UNCOUNTED = frozenset({"operator.getitem", qualified_name(OPEN_MASK)})
"""The names of operators that compute nothing and are not counted."""

M = TypeVar("M", bound=torch.nn.Module)
Executor = Literal["tensorrt", "reference"]
Format = Literal["trtp", "epcontext"]
StrPath = str | os.PathLike[str]
_RUNS = "pipeline.artifact.new_module"
_IMPLEMENTED_IN = {"_new_module": _RUNS, "_module_like": _RUNS}
"""The module that defines a method of `Compiled`, by the method's name, if it is not `pipeline.api`."""


@frozen
class RefitMap(Mapping[str, Recipe]):
    """The mapping from engine weight to the recipe that computes it from the model's parameters.

    ``computed`` names the weights that cannot be refitted, each with the reason.
    """

    recipes: FrozenDict[str, Recipe] = field(factory=FrozenDict)
    computed: FrozenDict[str, str] = field(factory=FrozenDict)

    def __getitem__(self, name: str) -> Recipe:
        return self.recipes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recipes)

    def __len__(self) -> int:
        return len(self.recipes)

    def __str__(self) -> str:
        return "\n".join(f"{name} <- {recipe}" for name, recipe in self.recipes.items())


@frozen
class ConvertedNode:
    """A node that runs in an engine: the node's name, its operator, and the engine's name."""

    node: str
    target: str
    engine: str


@frozen
class Coverage:
    """Which operators run in engines (``converted``), and which run in PyTorch, each with the reason (``fallback``).

    ``healed`` lists the operators with an alternative implementation, because their engine did not load or was wrong;
    ``unreached`` the user's converters and decompositions that were not used although the model has their operator."""

    converted: tuple[ConvertedNode, ...]
    fallback: tuple[Fallback, ...]
    healed: tuple[Healed, ...] = ()
    unreached: tuple[Unreached, ...] = ()

    @property
    def total(self) -> int:
        """The number of operators of the program."""
        return len(self.converted) + len(self.fallback)

    def __str__(self) -> str:
        first = f"{len(self.converted)} of {self.total} operators run in TensorRT"
        return "\n".join([first, *map(str, (*self.fallback, *self.healed, *self.unreached))])


class CompiledModule(torch.nn.Module, ABC):
    """A module that runs a compiled program. Its state is a copy of the buffers that the program mutates, under the
    model's names: ``state_dict`` returns the state, ``reset`` restores it, and ``new_state`` creates another module
    with a separate state.

    Inputs may be on any device; outputs are on the device of the inputs, or on the GPU if the inputs are on a GPU and
    on the CPU. Several threads and streams may call it at once: each call has its own execution context, up to
    ``settings.execution_contexts`` of them. Threads that call a program which mutates buffers must take turns.

    Attributes:
        compiled: the compiled program, without the model's parameters.
        program: the captured program that ``compiled`` was built from.
        settings: the settings that the module runs with.
        executor: where engines run: ``"tensorrt"`` or ``"reference"``.
        device: the device of its buffers and weights.
    """

    compiled: Compiled
    program: Program
    settings: CompilationSettings
    executor: Executor
    device: torch.device

    @abstractmethod
    def forward(self, *args: object, **kwargs: object) -> Any:
        """Run the program; return what the model returns for these inputs.

        Raises:
            ExecutionError: this call (on a GPU, perhaps an earlier call) wrote outside of a buffer.
            ShapeError: an input's size is outside its range, or violates a relation between sizes.
            TypeError: an input's type or dtype, or the structure of the inputs, differs from that at compilation.
            ValueError: an input that the program mutates shares memory with another input.
        """

    @abstractmethod
    def reset(self) -> None:
        """Restore the buffers in place to their values at compilation; clear errors about KV cache positions."""

    @abstractmethod
    def new_state(self) -> CompiledModule:
        """Return a module that shares the engines and weights, and has separate buffers with their initial values.

        Both modules may be called at the same time, from different threads or streams. A state needs memory for its
        buffers and, with ``cuda_graphs``, for a CUDA graph per input shape.
        """

    @property
    @abstractmethod
    def refused_graphs(self) -> tuple[str, ...]:
        """The reasons why calls of this module run without a CUDA graph although ``cuda_graphs=True`` requested one."""


@refuse_assignment("stages return others, as pipeline.refit_module_weights and with_lora do")
@frozen(slots=False, repr=False)
class Compiled:
    """A compiled program: its engines, the networks and recipes that they were built from, and its PyTorch segments.

    Callable: ``compiled(*args, **kwargs)`` returns the same pytree, dtypes and values as the model. It runs on TensorRT
    if there is a GPU, else on the CPU reference executor.

    Attributes:
        engines: a serialized engine for each engine segment, in order.
        networks: the frozen, printable description of each engine's network.
        refit_map: for each engine weight, the recipe that computes it from the model's parameters.
        partitioned: the program and its segments.
        agreement: the program's errors compared with eager PyTorch's; None without `pipeline.verify`.
        healed: the nodes compiled by an alternative implementation, because their engine did not load or was wrong
            (also in ``coverage.healed``).
        took: the seconds and memory of each compilation stage, as in `pipeline.Ledger`; empty for a loaded program.
        kernels: the kernels that TensorRT-RTX compiled when the engines were loaded, if no cache stores them
            (``runtime_cache=False``), or the kernels stored in the file that the program was loaded from.
    """

    partitioned: Partitioned
    networks: tuple[Network, ...]
    engines: tuple[Engine, ...]
    refit_map: RefitMap
    literals: FrozenDict[str, torch.Tensor] = field(eq=False)
    agreement: Agreement | None = field(default=None, eq=False)
    healed: tuple[Healed, ...] = field(default=())
    took: tuple[StageCost, ...] = field(default=(), eq=False)
    kernels: Kernels = field(default=NO_KERNELS, eq=False)

    # Implemented by packages above this record: the modules of `_IMPLEMENTED_IN` or else `pipeline.api`, imported when
    # one is first called, define these.
    _new_module: ClassVar[Callable[[Compiled, Executor | None, Mapping[str, object]], CompiledModule]]
    _module_like: ClassVar[Callable[[Compiled, M, CompiledModule], M]]
    _profiled: ClassVar[Callable[[Compiled, tuple[object, ...], Mapping[str, object], int], Profile]]
    _write: ClassVar[Callable[[Compiled, StrPath, StrPath, str], None]]
    _write_page: ClassVar[Callable[[Compiled, StrPath, str, Profile | None], None]]
    _adapted: ClassVar[Callable[[Compiled, Mapping[str, object] | StrPath, float, bool | None], Compiled]]

    @property
    def program(self) -> Program:
        """Return the decomposed program."""
        return self.partitioned.program

    @property
    def settings(self) -> CompilationSettings:
        """Return the settings that the program was compiled with."""
        return self.program.settings

    @cached_property
    def quantization(self) -> tuple[Pair, ...]:
        """Return, for each quantized weight and each quantize/dequantize pair of an activation, whether a matmul or
        convolution reads the quantized values, or why not, according to the engines' plans; empty without engines."""
        rows = zip(self.networks, self.engines, strict=False)
        return tuple(p for network, e in rows for p in find_quantized_pairs(network, e.plan, self.plan_network(e)))

    def plan_network(self, engine: Engine) -> Network:
        """Return the network that the engine's plan was built from; networks that differ only in names share a plan."""
        plan = engine.digest or engine.plan
        return next(n for n, e in zip(self.networks, self.engines, strict=False) if (e.digest or e.plan) == plan)

    def layer_names(self, engine: Engine, network: Network) -> dict[str, str]:
        """Map each layer name in an engine's plan to the layer's name in ``network``, the engine's description."""
        planned = self.plan_network(engine).layers
        return {theirs.name: ours.name for theirs, ours in zip(planned, network.layers, strict=True)}

    @cached_property
    def coverage(self) -> Coverage:
        """Return which operators run in engines (``converted``), which run in PyTorch and why (``fallback``), and which
        were compiled by an alternative implementation because their engine did not load or was wrong (``healed``)."""
        verdicts, elsewhere = self.partitioned.verdicts, {each.node for each in self.partitioned.fallbacks}
        rows = {
            name: ConvertedNode(name, verdicts[name].target, segment.name)
            for segment in reversed(self.partitioned.engine_segments)
            for name in reversed(segment.nodes)
            if verdicts[name].target not in UNCOUNTED and name not in elsewhere
        }
        unreached = self.program.unreached
        return Coverage(tuple(reversed(rows.values())), self.partitioned.fallbacks, self.healed, unreached)

    def module(self, executor: Executor | None = None, **runtime: object) -> CompiledModule:
        """Return a new ``nn.Module`` that runs the program and has separate buffers.

        Args:
            executor: ``"tensorrt"`` (needs a GPU), ``"reference"`` (the CPU), or None: TensorRT if there is a GPU.
            runtime: runtime settings (``cuda_graphs=True``) that override those of the compilation.

        Raises:
            ValueError: ``executor`` is not one of these values.
            ExecutionError: TensorRT was requested and there is no GPU, or the engine does not load.
            TypeError: ``runtime`` has an unknown setting, or one that takes effect only at compilation.
        """
        return self._new_module(executor, runtime)

    def in_place_of(self, model: M, executor: Executor | None = None, **runtime: object) -> M:
        """Return an object of the model's class that runs the program: a replacement for the model inside a larger
        program that also reads its attributes (``config``, ``dtype``, ``device``).

        The object has all attributes of the model except weights: its parameters use no memory and are NaN, so
        ``model`` may be on the ``meta`` device. Its submodules that have weights cannot be called separately.

        Args:
            model: the compiled model, or another instance built in the same manner. It is not changed.
            executor, runtime: as for `module`.

        Raises:
            TypeError: ``model`` is not an ``nn.Module``, or its ``forward`` does not accept the program's inputs.
            ExecutionError: as for `module`. A later call of a submodule with weights also raises it.
        """
        return self._module_like(model, self.module(executor, **runtime))

    def profile(self, *args: object, runs: int = 50, **kwargs: object) -> Profile:
        """Measure the time of each engine layer and each PyTorch segment of a call on the current GPU, in milliseconds:
        medians of several runs, mapped back to nodes, modules and source lines.

        Args:
            args, kwargs: the inputs, as for a call. They are copied to the GPU.
            runs: the number of measured runs, after a warm-up.

        Returns:
            A record that prints a table; ``report(html=…, profile=…)`` shows it on a page, ``trace(path)`` is for
            Perfetto.

        Raises:
            ExecutionError: there is no GPU, or an engine does not run here.
            ValueError: ``runs`` is less than 1.
        """
        return self._profiled(args, kwargs, runs)

    def save(self, path: StrPath, weights: StrPath = "inside", *, format: Format = "trtp") -> None:
        """Save the program to a file, usually ``NAME.trtp``, which `pipeline.load` reads.

        Args:
            path: the file. An existing file is replaced atomically, once the new file is complete.
            weights: where to save the weights that a refit, the reference executor, PyTorch segments and
                `pipeline.shared_weights` read: ``"inside"`` the file; ``"none"``: nowhere, so that only engines can
                run; or the path of a separate safetensors file, which `pipeline.load` finds by its relative path.
            format: ``"epcontext"``: an ONNX file for ONNX Runtime (extra ``onnx``), if the program is a single engine
                whose inputs and outputs are tensors; ``weights`` may then name a file for the plan.

        Raises:
            ArtifactError: a part of the program cannot be saved; the message names it.
            OSError: the file cannot be written.
        """
        self._write(path, weights, format)

    def with_lora(
        self, adapters: Mapping[str, object] | StrPath, scale: float = 1.0, *, fan_in_fan_out: bool | None = None
    ) -> Compiled:
        """Return the program with these low-rank (LoRA) adapters in place of earlier ones: W becomes W + scale * B @ A.

        Adapters are recipes over the weights, which stay unchanged: ``with_lora({})`` restores the original program bit
        by bit. Engines are refitted or built anew as by `pipeline.refit_module_weights`.

        Args:
            adapters: PEFT's state dict (``….lora_A.weight``, ``….lora_B.weight``), its safetensors file or folder, or
                a mapping from parameter to its factors: A [rank, in], B [out, rank].
            scale: ``lora_alpha / r`` of PEFT's configuration.
            fan_in_fan_out: whether square weights are [in, out], as in GPT-2's ``Conv1D``. The layout of other weights
                follows from their shape.

        Raises:
            RefitError: names each adapter that does not fit, with the reason.
        """
        return self._adapted(adapters, scale, fan_in_fan_out)

    @cached_property
    def _module(self) -> CompiledModule:
        """Return the module that runs calls of this record; it is created at the first call."""
        return self.module()

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the program; return what the model returns for these inputs."""
        return self._module(*args, **kwargs)

    def __str__(self) -> str:
        """Return the engines, their operators and their size: ``1 engine, 53 of 53 operators, 22.7 MB``."""
        count, size, found = len(self.engines), sum(engine.nbytes for engine in self.engines), self.coverage
        amount = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
        return f"{count} engine{'s'[: count != 1]}, {len(found.converted)} of {found.total} operators, {amount}"

    def __repr__(self) -> str:
        return f"<Compiled: {self}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return a method that another module defines; raise an error with advice for methods of ``nn.Module``."""
            if name in type(self).__annotations__:
                importlib.import_module(_IMPLEMENTED_IN.get(name, "pipeline.api"))
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            raise missing_attribute_error(name, (*type(self).__annotations__, *dir(type(self))))

    def __copy__(self, memo: object = None) -> Compiled:
        """Return the program itself, which is immutable."""
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> Any:
        why = "a Compiled cannot be pickled, since it holds converters and engines in memory-mapped files"
        raise TypeError(f"{why}: to store it, use compiled.save(path) and pipeline.load(path)")

    def report(self, html: StrPath | None = None, *, title: str = "", profile: Profile | None = None) -> str:
        """Return a text that describes the program: converted operators, every fallback with its reason, inputs and
        outputs, dynamic sizes, each segment in order (operators, inputs and outputs, tensors that later segments read,
        an engine's size and layers), and the errors compared with eager PyTorch if the program was verified.

        Args:
            html: a file for the same report as a web page, which draws the program as modules that unfold to nodes. The
                file needs no network access; an existing file is replaced.
            title: the program's name on the page; the model's class by default.
            profile: the result of `profile`, for the page.

        Raises:
            OSError: the file cannot be written.
        """
        if html is not None:
            self._write_page(html, title, profile)
        sizes = {}
        for engine, network in zip(self.engines, self.networks, strict=False):
            kinds = ", ".join(f"{n} {kind}" for kind, n in network.kinds().items())
            layers = f"{len(network.layers)} layers ({kinds})"
            sizes[engine.name] = f"  engine {engine.nbytes / 1e6:.1f} MB, {engine.library}, {layers}"
        inputs, outputs = input_and_output_lines(self.partitioned)
        lines = [str(self.coverage), "", "inputs:", *(f"  {row}" for row in inputs)]
        lines += ["outputs:", *(f"  {row}" for row in outputs), ""]
        rows, words = [*self.program.shapes.lines()], self.program.shapes.user_names
        for place, ranges in enumerate(self.program.profiles):
            rows.append(f"profile {place}: {', '.join(f'{words.get(name, name)}={r}' for name, r in ranges.items())}")
        lines += ["sizes that vary:", *(f"  {row}" for row in rows), ""] if rows else []
        for segment in self.partitioned.segments:
            head, *rest = segment_lines(self.partitioned, segment)
            lines += [head, *filter(None, [sizes.get(segment.name)]), *rest]
        lines += [f"quantized: {pair}" for pair in self.quantization]
        lines += [f"not refittable: {name}: {why}" for name, why in self.refit_map.computed.items()]
        return "\n".join([*lines, *([str(self.agreement)] if self.agreement else [])])
