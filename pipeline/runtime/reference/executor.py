"""Run a network description on the CPU: layers run in order, except that loops and conditionals run on demand."""

from collections.abc import Collection, Mapping, Sequence

import attrs
import torch

from pipeline.network.description import Layer, Network, Tensor
from pipeline.runtime.reference.common import LayerError
from pipeline.runtime.reference.flow import Flow, input_names, needed_layers, read_flow, region_of
from pipeline.runtime.reference.kinds import FLOW, KINDS, NOT_MODELLED, collective
from pipeline.runtime.reference.quantized import element_dtype

Values = Mapping[str, torch.Tensor]
LIMITS = ("TRIP_LIMIT", "CONDITION")


@attrs.frozen
class Plan:
    """The layers of a network to run in order, and after each layer the tensors that are no longer needed."""

    network: Network
    flow: Flow
    steps: tuple[Layer, ...]
    last_uses: Mapping[str, tuple[str, ...]]

    @classmethod
    def from_network(cls, network: Network) -> "Plan":
        """Create the plan of a network. It omits layers inside loops and conditionals, since these run on demand."""
        flow = read_flow(network)
        wanted = needed_layers(network, flow)
        live = [layer for layer in network.layers if layer.name in wanted]
        steps = [layer for layer in live if not flow.regions_around(layer) and layer.kind not in LIMITS]
        ours = {layer.name for layer in steps if layer.kind not in FLOW}
        kept = {tensor.name for tensor in network.outputs}
        kept |= {name for layer in live if layer.name not in ours for name in input_names(layer)}
        last = {name: row.name for row in steps if row.name in ours for name in input_names(row) if name not in kept}
        last_uses: dict[str, tuple[str, ...]] = {}
        for name, layer_name in last.items():
            last_uses[layer_name] = (*last_uses.get(layer_name, ()), name)
        return cls(network, flow, tuple(steps), last_uses)


@attrs.frozen
class Frame:
    """The values of tensors in one iteration of a loop; the outermost frame belongs to no loop."""

    values: dict[str, torch.Tensor]
    loop: str | None = None
    parent: "Frame | None" = None

    def enclosing_loops(self) -> set[str | None]:
        """Return the names of the loops of this frame and of all frames around it; None for the outermost frame."""
        return {self.loop} | (self.parent.enclosing_loops() if self.parent is not None else set())

    def frame_of(self, regions: Collection[str | None]) -> "Frame":
        """Return the innermost frame that runs one of these loops; the outermost frame if none does."""
        frame = self
        while frame.parent is not None and frame.loop not in regions:
            frame = frame.parent
        return frame


def run(network: Network, weights: Values, inputs: Values) -> dict[str, torch.Tensor]:
    """Compute the outputs of a network, by name; a `LayerError` names a layer that breaks a rule of TensorRT."""
    return run_plan(Plan.from_network(network), weights, inputs)


def run_plan(plan: Plan, weights: Values, inputs: Values, group: str = "") -> dict[str, torch.Tensor]:
    """Run a plan as `run` does; collectives use the process group named ``group``."""
    bound = {tensor.name: _check_input(tensor, inputs) for tensor in plan.network.inputs}
    with torch.no_grad():
        values = _PlanRun(plan, weights, group).run(bound)
    foreign = {tensor.untyped_storage().data_ptr() for tensor in (*weights.values(), *bound.values())}
    return {tensor.name: _clone_if_shared(values[tensor.name], foreign) for tensor in plan.network.outputs}


def _check_input(tensor: Tensor, inputs: Values) -> torch.Tensor:
    if tensor.name not in inputs:
        raise LayerError(f"input {tensor.name!r} is missing; the given inputs are {sorted(inputs)}")
    return _check_tensor(tensor, inputs[tensor.name].detach(), f"input {tensor.name!r}")


def _clone_if_shared(value: torch.Tensor, used_addresses: set[int]) -> torch.Tensor:
    """Return an output, cloned if it shares memory with an input, a weight or another output."""
    value = value.contiguous()
    value = value.clone() if value.untyped_storage().data_ptr() in used_addresses else value
    used_addresses.add(value.untyped_storage().data_ptr())
    return value


def _check_tensor(declared: Tensor, value: torch.Tensor, producer: str) -> torch.Tensor:
    fits = value.dim() == len(declared.shape) and all(
        want in (-1, size) for want, size in zip(declared.shape, value.shape, strict=True)
    )
    if not fits or value.dtype != element_dtype(declared.dtype):
        raise LayerError(f"{producer} is {value.dtype}{list(value.shape)}, but the network declares {declared}")
    return value


class _PlanRun:
    """A run of a `Plan`. Tensors are stored in a `Frame` for the network, and one for each iteration of a loop."""

    def __init__(self, plan: Plan, weights: Values, group: str) -> None:
        self.plan, self.flow, self.weights, self.group = plan, plan.flow, weights, group

    def run(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        root = Frame(inputs)
        for layer in self.plan.steps:
            ready = layer.kind not in FLOW and all(name is None or name in root.values for name in layer.inputs)
            if not layer.outputs or (ready and layer.outputs[0].name not in root.values):
                self.run_layer(layer, root)
            else:
                for tensor in layer.outputs:
                    self.compute(tensor.name, root)
            for name in self.plan.last_uses.get(layer.name, ()):
                root.values.pop(name, None)
        for tensor in self.plan.network.outputs:
            self.compute(tensor.name, root)
        return root.values

    def frame_holding(self, tensor_name: str, frame: Frame) -> Frame:
        """Return the frame that stores a tensor: ``frame`` if its loop contains the tensor, else one around it."""
        return frame if frame.parent is None else frame.frame_of(self.flow.inside.get(tensor_name, ()))

    def find_value(self, tensor_name: str, frame: Frame) -> torch.Tensor | None:
        return self.frame_holding(tensor_name, frame).values.get(tensor_name)

    def compute(self, tensor_name: str, frame: Frame) -> torch.Tensor:
        """Return a tensor's value, after running the layers that it depends on; not recursive: networks are deep."""
        value = self.find_value(tensor_name, frame)
        if value is not None:
            return value
        stack = [tensor_name]
        while stack:
            if self.find_value(stack[-1], frame) is not None:
                stack.pop()
                continue
            layer = self.flow.producers[stack[-1]]
            missing = [need for need in self.needed_tensors(layer, frame) if self.find_value(need, frame) is None]
            if missing:
                stack += missing
            else:
                self.run_layer(layer, frame)
        value = self.find_value(tensor_name, frame)
        assert value is not None
        return value

    def needed_tensors(self, layer: Layer, frame: Frame) -> tuple[str, ...]:
        """Return the tensors that a layer needs before it runs: for a conditional, the tensors of the taken branch; for
        a loop, its initial state."""
        region = region_of(layer)
        if layer.kind == "CONDITIONAL_OUTPUT":
            (condition,) = (input_names(entry)[0] for entry in self.flow.boundary_layers(region, "CONDITION"))
            taken = self.find_value(condition, frame)
            return (condition,) if taken is None else (input_names(layer)[0 if bool(taken) else 1],)
        if layer.kind != "LOOP_OUTPUT":
            return input_names(layer)
        entries = [*self.flow.boundary_layers(region, "RECURRENCE"), *self.flow.boundary_layers(region, "ITERATOR")]
        return tuple(input_names(entry)[0] for entry in (*entries, *self.trip_count_limits(region)))

    def trip_count_limits(self, region: str | None) -> tuple[Layer, ...]:
        """Return those TRIP_LIMIT layers of the loop ``region`` that limit it by a count; others have a condition."""
        limits = self.flow.boundary_layers(region, "TRIP_LIMIT")
        return tuple(limit for limit in limits if limit.attribute("kind") == "COUNT")

    def run_layer(self, layer: Layer, frame: Frame) -> None:
        try:
            results = self.layer_results(layer, frame)
            for row, value in zip(layer.outputs, results, strict=True):
                self.frame_holding(row.name, frame).values[row.name] = _check_tensor(row, value, f"output {row.name!r}")
        except Exception as error:
            if getattr(error, "named", False):
                raise
            text = error.message if isinstance(error, LayerError) else f"{type(error).__name__}: {error}"
            named = LayerError(f"layer {layer.kind} {layer.name!r}: {text}")
            named.named = True
            raise named from error

    def layer_results(self, layer: Layer, frame: Frame) -> tuple[torch.Tensor, ...]:
        if layer.kind == "LOOP_OUTPUT":
            return (self.run_loop(region_of(layer), frame)[layer.name],)
        if layer.kind == "CONDITIONAL_OUTPUT":
            return (self.compute(self.needed_tensors(layer, frame)[0], frame),)
        if layer.kind == "DIST_COLLECTIVE":
            return (collective(layer, self.compute(input_names(layer)[0], frame), self.group),)
        inputs = [None if name is None else self.compute(name, frame) for name in layer.inputs]
        if layer.kind == "CONDITIONAL_INPUT":
            return tuple(value for value in inputs if value is not None)
        if layer.kind in NOT_MODELLED or layer.kind not in KINDS:
            raise LayerError(f"the CPU executor lacks this layer: {NOT_MODELLED.get(layer.kind, 'unknown kind')}")
        return KINDS[layer.kind](layer, inputs, {role: self.weights[name] for role, name in layer.weights})

    def run_loop(self, region: str | None, frame: Frame) -> dict[str, torch.Tensor]:
        """Run the loop ``region`` (such as "loop 0") from the values in ``frame``; return its outputs by layer name."""
        recurrences = self.flow.boundary_layers(region, "RECURRENCE")
        exits = self.flow.boundary_layers(region, "LOOP_OUTPUT")
        collected: dict[str, list[torch.Tensor]] = {layer.name: [] for layer in exits}
        state = {entry.outputs[0].name: self.compute(input_names(entry)[0], frame) for entry in recurrences}
        inner, trip = Frame(dict(state), region, frame), 0
        while self.has_next_trip(region, inner, trip):
            self.run_assertions(region, inner)
            for layer in exits:
                if layer.attribute("kind") != "LAST_VALUE":
                    collected[layer.name].append(self.compute(input_names(layer)[0], inner))
            state = {entry.outputs[0].name: self.compute(input_names(entry)[1], inner) for entry in recurrences}
            inner, trip = Frame(dict(state), region, frame), trip + 1
        return {layer.name: self.loop_output(layer, collected[layer.name], inner) for layer in exits}

    def has_next_trip(self, region: str | None, inner: Frame, trip: int) -> bool:
        """Return whether the loop ``region`` (such as "loop 0") runs iteration ``trip``, by its count and condition.
        Before the condition, set the slices of this iteration in its frame ``inner``: see `bind_iterated_slice`."""
        if any(trip >= int(self.compute(input_names(limit)[0], inner)) for limit in self.trip_count_limits(region)):
            return False
        for iterator in self.flow.boundary_layers(region, "ITERATOR"):
            self.bind_iterated_slice(iterator, inner, trip)
        limits = [row for row in self.flow.boundary_layers(region, "TRIP_LIMIT") if row.attribute("kind") == "WHILE"]
        return all(bool(self.compute(input_names(limit)[0], inner)) for limit in limits)

    def bind_iterated_slice(self, iterator: Layer, inner: Frame, trip: int) -> None:
        """Set an ITERATOR layer's output in frame ``inner`` to slice ``trip`` of its input, if it has that many."""
        source, axis = self.compute(input_names(iterator)[0], inner), iterator.attribute("axis")
        length = source.shape[axis]
        if trip < length:
            index = length - 1 - trip if iterator.attribute("reverse") else trip
            inner.values[iterator.outputs[0].name] = source.select(axis, index)

    def run_assertions(self, region: str | None, inner: Frame) -> None:
        """Run the assertions in the loop ``region``, except in its conditionals and inner loops, for the iteration with
        the frame ``inner``: no layer reads an output of an assertion, so `compute` does not run them."""
        for layer in self.plan.network.layers:
            around = self.flow.regions_around(layer) if layer.kind == "ASSERTION" else frozenset()
            if region in around and around <= inner.enclosing_loops():
                self.run_layer(layer, inner)

    def loop_output(self, layer: Layer, collected: list[torch.Tensor], last: Frame) -> torch.Tensor:
        """Return a loop output: its value in frame ``last``, or the values ``collected`` in all iterations, stacked."""
        if layer.attribute("kind") == "LAST_VALUE":
            return self.compute(input_names(layer)[0], last)
        row, axis = layer.outputs[0], layer.attribute("axis")
        if not collected:
            shape = [0 if place == axis else max(size, 0) for place, size in enumerate(row.shape)]
            return torch.empty(shape, dtype=element_dtype(row.dtype))
        return torch.stack(collected[::-1] if layer.attribute("kind") == "REVERSE" else collected, axis)


@attrs.frozen
class ReferenceEngine:
    """A network with its weights, callable with its inputs in order; collectives use the process group ``group``."""

    network: Network
    weights: Values = attrs.field(eq=False, repr=False)
    group: str = ""
    plan: Plan = attrs.field(init=False, eq=False, repr=False)

    @plan.default
    def _plan(self) -> Plan:
        """Return the order in which this engine runs the network's layers."""
        return Plan.from_network(self.network)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if len(inputs) != len(self.network.inputs):
            raise LayerError(f"the network takes {len(self.network.inputs)} inputs, got {len(inputs)}")
        named = {tensor.name: value for tensor, value in zip(self.network.inputs, inputs, strict=True)}
        outputs = run_plan(self.plan, self.weights, named, self.group)
        return [outputs[tensor.name] for tensor in self.network.outputs]
