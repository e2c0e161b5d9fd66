"""``EngineSession``: run an engine in an execution context; shapes and addresses are set only when they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve, field, frozen

from pipeline.aten.types import Leaf
from pipeline.errors import ExecutionError
from pipeline.runtime.engine_buffers import (
    ALIGNMENT,
    ActivationMemory,
    Allocator,
    Binding,
    OutputBuffer,
    ReusableMemory,
    describe_tensor,
    has_plain_layout,
    read_bindings,
    tensor_allocator,
    to_engine_memory,
)
from pipeline.runtime.engine_context import Context, Contexts
from pipeline.runtime.engine_load import LOG, LoadedEngine, collect_errors
from pipeline.trt import CAPABILITIES, trt

COPIED = 16 << 20
"""Inputs and outputs of up to this many bytes are copied to and from the session's memory. A new address costs RTX 1.4
about 0.12 ms of the host for ResNet-50 (it updates all its kernels); a copy of 16 MiB on an H200 costs 0.01 ms of the
GPU and 5 us of the host."""
NOWHERE: Mapping[int, torch.Tensor] = MappingProxyType({})
PLANS = 64
"""The maximum number of shapes for which a session caches plans."""


@frozen(eq=False)
class EnginePlan:
    """Where an engine reads its inputs and writes its outputs, for inputs of the same shapes.

    ``fixed``: (name, tensor) of each input that is bound once and kept alive. ``copies``: (input index, session memory)
    of each input that is copied to session memory. ``loose``: the indices of the inputs that are read in the caller's
    memory. ``results``: for each output the session memory that the engine writes, or None if each run allocates it.
    ``makers``: for each output the function that allocates it, or None if its shape is known only after the run.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    fixed: tuple[tuple[str, torch.Tensor], ...] = field(repr=False)
    copies: tuple[tuple[int, torch.Tensor], ...] = field(repr=False)
    loose: tuple[int, ...]
    makers: tuple[Allocator | None, ...] = field(default=(), repr=False)
    results: tuple[torch.Tensor | None, ...] = field(default=(), repr=False)


class EngineSession:
    """Run an engine in an execution context, one run at a time.

    Shapes are set and inferred only when they change. A run copies its inputs to session memory, enqueues the engine,
    and copies the outputs. Tensors of more than ``COPIED`` bytes are read and written in place, as are inputs that have
    the same address at every call.

    Args:
        loaded: the engine.
        stream: the stream on which the profile is selected.
        arena: memory for activations.
        engine_graph: whether TensorRT-RTX launches runs as a CUDA graph while shapes and addresses stay the same. Such
            a run cannot be captured in another graph.
        updated: the indices of inputs that the engine updates in the caller's memory. Any other input that the engine
            updates is copied to session memory first.
        fixed: the indices of inputs that are the same tensors at every call: they are bound once.
        profile: the number of the engine's profile for all runs.
        contexts: execution contexts that several sessions of the engine use in turn. In a call of the program all
            these sessions must get inputs of equal shapes: a CUDA graph's capture cannot set shapes. A session whose
            runs are launched as a graph, or that has inputs in host memory, creates a separate context.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        stream: torch.cuda.Stream,
        arena: ActivationMemory,
        *,
        engine_graph: bool = False,
        updated: frozenset[int] = frozenset(),
        fixed: frozenset[int] = frozenset(),
        profile: int = 0,
        contexts: Contexts | None = None,
    ) -> None:
        self.loaded, self.network, self.device, self.arena = loaded, loaded.network, arena.device, arena
        engine = loaded.cuda_engine
        self.known = read_bindings(engine)
        self.inputs = [self._find_binding(tensor.name) for tensor in self.network.inputs]
        self.outputs = [self._find_binding(tensor.name) for tensor in self.network.outputs]
        self.written = {b.alias for b in self.outputs if b.alias}
        self.held, self.fixed = self.written & {self.inputs[i].name for i in updated}, fixed
        places = {b.name: i for i, b in enumerate(self.inputs)}
        self._in_place = {i: places[b.alias] for i, b in enumerate(self.outputs) if b.alias in self.held}
        self.on_host = [i for i, b in enumerate(self.inputs) if b.on_host]
        self._gives_to_host = any(b.on_host for b in self.outputs)
        self.buffers: dict[str, OutputBuffer] = {}
        self._profile = profile
        self.slabs = {b.name: ReusableMemory(b.dtype, self.device) for b in self.known.values()}
        self.empty = {b.name: torch.empty(256, dtype=torch.uint8, device=self._device(b)) for b in self.known.values()}
        self.plans: dict[object, EnginePlan] = {}
        self._current: EnginePlan | None = None
        self._like: object = None
        self._fresh = True
        self._addresses: dict[str, int] = {}
        self._moving = {i for i, b in enumerate(self.inputs) if b.name in self.written}
        self._placed: set[int] = set()
        self.arena.reserve(loaded.device_memory)
        bound_once = {self.inputs[i].name for i in fixed}
        moving = [binding for binding in self.known.values() if binding.name not in bound_once]
        able = CAPABILITIES.runtime_config and not loaded.group  # a graph of RTX with collectives was never tried
        self._graph = engine_graph and able and all(map(_fits_session_memory, moving))
        if contexts is None or self._graph or self.on_host:
            self._in = Context(loaded, stream, profile, graph=self._graph)
        else:
            self._in = contexts.context_for(loaded, stream, profile)
        self._own_token = object()

    def __call__(
        self,
        inputs: Sequence[Leaf],
        stream: torch.cuda.Stream,
        *,
        reuse_outputs: bool = False,
        in_place: bool = False,
        into: Mapping[int, torch.Tensor] = NOWHERE,
        shapes_key: object = None,
    ) -> list[Leaf]:
        """Enqueue a run on ``stream``, which must be the current stream, and return the outputs.

        Args:
            inputs: tensors and ints in the order of the network's inputs.
            reuse_outputs: return session memory, which the next run overwrites, instead of copies.
            in_place: copy no tensor: read every input in place, and write every output to new memory.
            into: memory for some outputs, by output index: used where this run would allocate new memory.
            shapes_key: an object such as a call plan. If the last call passed the same object, the inputs must have the
                same shapes, dtypes and devices as in that call, and are not compared. None: compare.

        Raises:
            ExecutionError: the engine does not accept an input, TensorRT refuses to run, or the caller captures a CUDA
                graph although TensorRT-RTX launches this engine as a graph itself.
        """
        if self._graph:
            self._check_not_capturing()
        if self._in.owner is not self._own_token:
            self._restore_context()
        plan = self._current
        if plan is None or shapes_key is None or shapes_key is not self._like:
            plan = self._select_plan(inputs, in_place=in_place)
            self._like = None if self.on_host else shapes_key
        for position, memory in plan.copies:
            if position in self._moving or not self._bind_in_place(position, inputs[position], memory):
                memory.copy_(inputs[position])
        held = [self._bind_input(self.inputs[i], inputs[i]) for i in plan.loose]
        results = [
            memory if memory is not None else self._bind_output(i, plan.makers[i], into.get(i), inputs)
            for i, memory in enumerate(plan.results)
        ]
        self._enqueue(stream)
        del held
        if self._fresh:
            self._fresh = False
            if self.loaded.cache is not None:
                self.loaded.cache.may_have_new = True  # new shapes, for which TensorRT compiles kernels
        return [
            result.clone() if memory is not None and not reuse_outputs else self._finish_output(binding, result)
            for binding, result, memory in zip(self.outputs, results, plan.results, strict=True)
        ]

    @property
    def context(self) -> trt.IExecutionContext:
        return self._in.handle

    def _select_plan(self, inputs: Sequence[object], *, in_place: bool) -> EnginePlan:
        """Return the plan for inputs of these shapes, and set it in the context. ``in_place``: see `__call__`."""
        shapes = [(v.shape, v.dtype) if isinstance(v, torch.Tensor) else v for v in inputs]
        on_host = [inputs[i] for i in self.on_host]  # TensorRT reads their values there
        key = (in_place, *shapes, *[tuple(v.flatten().tolist()) if isinstance(v, torch.Tensor) else v for v in on_host])
        plan = self.plans.get(key)
        return self._apply(plan, key, inputs, in_place=in_place) if plan is None or plan is not self._current else plan

    def _bind_in_place(self, input_index: int, value: torch.Tensor, session_memory: torch.Tensor) -> bool:
        """Bind an input where the caller has it, and return True, if TensorRT can read it there and no earlier call had
        another address. Else bind ``session_memory`` and return False: from now on each call copies the input there."""
        name = self.inputs[input_index].name
        if self._is_readable_in_place(value, session_memory.dtype):
            if value.data_ptr() == self._addresses.get(name):
                return True
            if input_index not in self._placed:
                self._placed.add(input_index)
                self._set_address(name, value)
                return True
        self._moving.add(input_index)
        self._set_address(name, session_memory)
        return False

    def _is_readable_in_place(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        """Return whether TensorRT can read a tensor in place with this dtype."""
        aligned = tensor.data_ptr() % ALIGNMENT == 0
        return aligned and tensor.dtype == dtype and has_plain_layout(tensor) and tensor.device == self.device

    def _find_binding(self, name: str) -> Binding:
        if name not in self.known:
            known = ", ".join(map(str, self.known.values()))
            raise ExecutionError(f"{self.network.name} has no input or output {name}, only {known}")
        return self.known[name]

    def _device(self, binding: Binding) -> torch.device:
        return torch.device("cpu") if binding.on_host else self.device

    def _check_not_capturing(self) -> None:
        """Raise an error if the caller captures a CUDA graph: TensorRT-RTX launches this engine as a graph itself."""
        if torch.cuda.is_current_stream_capturing():
            raise ExecutionError(
                f"{self.network.name} runs as a CUDA graph of TensorRT-RTX, so no other CUDA graph can capture it",
                "capture compiled.module(engine_graphs=False), or use compiled.module(cuda_graphs=True)",
            )

    def _restore_context(self) -> None:
        """Set this session's shapes and addresses again in a context that another session has used meanwhile."""
        self._in.owner, self._in.name = None, self.network.name
        for name, address in self._addresses.items():
            self._in.set_address(name, address)
        for name, buffer in self.buffers.items():
            self._in.set_output_allocator(name, buffer)
        if self._current is not None:
            with collect_errors() as messages:
                self._in.set_shapes(self._current.shapes, self._accepted_shapes, messages, force=bool(self.on_host))
            self._in.set_memory(self.arena.memory)
        self._in.owner = self._own_token

    def _apply(self, plan: EnginePlan | None, key: object, inputs: Sequence[object], *, in_place: bool) -> EnginePlan:
        """Set a plan's shapes and addresses in the execution context, and return the plan. If ``plan`` is None, create
        it for the inputs, and cache it under ``key``. ``in_place``: see `__call__`."""
        if len(inputs) != len(self.inputs):
            raise ExecutionError(f"{self.network.name} takes {len(self.inputs)} inputs, got {len(inputs)}")
        self._current = None
        with collect_errors() as messages:
            current = plan or self._plan_inputs(inputs, in_place=in_place)
            for name, memory in current.fixed:
                self._set_address(name, memory)
            for position, memory in current.copies:
                if position in self._moving:
                    self._set_address(self.inputs[position].name, memory)
            self._in.set_shapes(current.shapes, self._accepted_shapes, messages, force=bool(self.on_host))
            current = plan or self._plan_outputs(current, in_place=in_place)
            for binding, result in zip(self.outputs, current.results, strict=True):
                if result is not None:
                    self._set_address(binding.name, result)
            self._in.set_memory(self.arena.memory)
        if plan is None:
            if len(self.plans) >= PLANS:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # a run may still read the dropped plan's host memory
                self.plans.pop(next(iter(self.plans)))
            self.plans[key] = current
            self._fresh = not in_place
        self._current = current
        return current

    def _plan_inputs(self, inputs: Sequence[object], *, in_place: bool) -> EnginePlan:
        """Create a plan that says where the engine reads each input; `_plan_outputs` adds the outputs."""
        shapes, fixed, copies, free = [], [], [], []
        for position, (binding, value) in enumerate(zip(self.inputs, inputs, strict=True)):
            tensor = self._check_input(binding, value)
            if not binding.on_host:
                shapes.append((binding.name, tuple(tensor.shape)))
            if binding.on_host or position in self.fixed or not isinstance(value, torch.Tensor):
                fixed.append((binding.name, to_engine_memory(value, binding, self.device)))
            elif binding.name not in self.held and (
                binding.name in self.written or (not in_place and tensor.nbytes <= COPIED)
            ):
                copies.append((position, self.slabs[binding.name].view(tuple(tensor.shape))))
            else:
                free.append(position)
        return EnginePlan(tuple(shapes), tuple(fixed), tuple(copies), tuple(free))

    def _check_input(self, binding: Binding, value: object) -> torch.Tensor:
        tensor = torch.as_tensor(value)
        shape, dtype = tuple(tensor.shape), tensor.dtype
        narrowed = dtype == torch.float64 and binding.dtype == torch.float32
        if (dtype != binding.dtype and not narrowed) or (binding.on_host and shape != binding.shape):
            what = describe_tensor(dtype, shape)
            raise ExecutionError(f"{self.network.name}: input {binding.name} is {what}, but the engine takes {binding}")
        return tensor

    def _plan_outputs(self, plan: EnginePlan, *, in_place: bool) -> EnginePlan:
        """Return ``plan`` with ``results`` and ``makers``: where the engine writes outputs, whose shapes TensorRT has
        inferred. ``in_place``: see `__call__`."""
        copies = {self.inputs[position].name: memory for position, memory in plan.copies}
        makers, results = list[Allocator | None](), list[torch.Tensor | None]()
        for binding in self.outputs:
            shape = tuple(self.context.get_tensor_shape(binding.name))
            known = -1 not in shape and binding.name not in self.buffers
            small = known and torch.Size(shape).numel() * binding.dtype.itemsize <= COPIED
            makers.append(tensor_allocator(shape, binding.dtype, self._device(binding)) if known else None)
            if binding.alias:
                results.append(copies.get(binding.alias))
            else:
                in_slab = small and not in_place and not binding.on_host
                results.append(self.slabs[binding.name].view(shape) if in_slab else None)
        return evolve(plan, makers=tuple(makers), results=tuple(results))

    @cached_property
    def _accepted_shapes(self) -> Mapping[str, str]:
        """For each input, the shapes that the engine was built for, as text for errors."""
        ranges = self.network.profiles[self._profile].ranges if self.network.profiles else ()
        spans = {name: f", built for {list(low)} to {list(high)}" for name, low, _, high in ranges}
        return {name: spans.get(name, f", built for {list(b.shape)}") for name, b in self.known.items()}

    def _bind_input(self, binding: Binding, value: torch.Tensor) -> torch.Tensor:
        """Bind an input, or else a copy that TensorRT can read. Return the bound tensor, which must stay alive."""
        readable = self._is_readable_in_place(value, binding.dtype)
        if binding.name in self.held and not readable:
            raise ExecutionError(
                f"{self.network.name} updates {binding} in place: pass a tensor that is aligned to {ALIGNMENT} bytes"
            )
        tensor = value if readable else to_engine_memory(value, binding, self.device)
        self._set_address(binding.name, tensor)
        return tensor

    def _set_address(self, name: str, tensor: torch.Tensor) -> None:
        # A tensor without elements has no memory in torch; TensorRT wants an address, another for each tensor.
        address = (tensor if tensor.numel() else self.empty[name]).data_ptr()
        if self._addresses.get(name) != address:
            self._addresses.pop(name, None)
            self._in.set_address(name, address)
            self._addresses[name] = address

    def _bind_output(
        self, output_index: int, make: Allocator | None, into: torch.Tensor | None, inputs: Sequence[Any]
    ) -> torch.Tensor | OutputBuffer:
        """Bind an output to memory, and return this tensor: the input if the engine updates one in place, else ``into``
        if it is given, else ``make()``. If ``make`` is None, the shape is known only after the run: return the
        `OutputBuffer` that allocates memory when TensorRT requests it."""
        binding = self.outputs[output_index]
        if make is None:
            if binding.name not in self.buffers:
                buffer = OutputBuffer(binding, self.device)
                self._in.set_output_allocator(binding.name, buffer)
                self.buffers[binding.name] = buffer
            return self.buffers[binding.name]
        held = self._in_place.get(output_index)
        tensor = inputs[held] if held is not None else make() if into is None else into
        self._set_address(binding.name, tensor)
        return tensor

    def _enqueue(self, stream: torch.cuda.Stream) -> None:
        mark = LOG.position()
        for buffer in self.buffers.values():
            buffer.begin_run(stream)
        done = self.context.execute_async_v3(stream.cuda_stream)
        if done and self._gives_to_host:
            stream.synchronize()
        for buffer in self.buffers.values():
            if buffer.error is not None:
                raise ExecutionError(f"{self.network.name} cannot allocate an output: {buffer.error}") from buffer.error
        if not done:
            self._current = None
            self._in.require_success(done, "to run", lambda: LOG.error_text_since(mark))

    def _finish_output(self, binding: Binding, result: torch.Tensor | OutputBuffer) -> torch.Tensor:
        """Return an output of the run just enqueued: from its `OutputBuffer`, or copied from host memory to the GPU."""
        if isinstance(result, OutputBuffer):
            taken = result.take_output()
            if taken is None:
                why = f"{self.network.name}: TensorRT requested too little memory for output {binding.name}"
                raise ExecutionError(why)
            return taken.to(self.device)
        return result.to(self.device) if binding.on_host else result


def _fits_session_memory(binding: Binding) -> bool:
    """Return whether a binding has a static shape and is small enough for session memory."""
    size = torch.Size(binding.shape).numel() * binding.dtype.itemsize
    return -1 not in binding.shape and not binding.on_host and size <= COPIED
