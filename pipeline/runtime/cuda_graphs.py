"""Capture whole calls of a program, PyTorch segments included, as CUDA graphs: one per shape, up to a limit.

The first call with a shape runs normally, the second call is captured, and later calls replay the graph. The graph
reads an input in place while its address stays the same; after a change of address the graph reads a copy. Outputs are
copied out, so that no replay overwrites a tensor that a caller holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakMethod

import torch
from attrs import evolve

from pipeline.aten.types import Leaf
from pipeline.runtime import graph_copies
from pipeline.runtime.call_plan import CallPlan, Return, RunOptions
from pipeline.runtime.capture import capture, capturing, free_unused_memory
from pipeline.runtime.engine_buffers import has_plain_layout
from pipeline.runtime.graph_copies import GraphInstance, instantiate
from pipeline.runtime.graph_replays import GraphInput, GraphOutput, Replayer, make_instance

log = logging.getLogger(__name__)

LARGE = 1 << 20
"""Outputs of at least this many bytes are written directly to the caller's memory once its address repeats: the call is
captured again for that address. Copying GPT-2's logits at batch 8 (206 MB) takes 5 % of the call on an H200."""


class CapturedCall:
    """A call captured as a CUDA graph.

    Args:
        worker: the `CudaWorker` whose call is captured.
        plan: the call plan of the calls to replay. leaves: the inputs of such a call.
        pool: the memory pool of the worker's graphs, which are never replayed at the same time.
        reuse: return the graph's own outputs, which the next replay overwrites.
        fixed_addresses: the addresses of inputs that are read in place, by input index.
    """

    def __init__(
        self,
        worker: Any,
        plan: CallPlan,
        leaves: Sequence[Leaf],
        pool: Any,
        reuse: bool,
        fixed_addresses: Mapping[int, int],
    ) -> None:
        self.plan, self.reuse, self.layout = plan, reuse, worker.executor.layout
        self.fast_replay: Any = None
        """The `FastReplay` for calls like this one, created after the first replay."""
        self.still = tuple(fixed_addresses.items())
        self._executor, self._lane, self._pool = worker.executor, worker.lane, pool
        self._inside = graph_copies.can_set_node_addresses()
        self._in_torch = any(step.segment.kind == "torch" for step in self.layout.steps)
        moving = [given for given, _, _ in plan.moves if given not in fixed_addresses]
        self._fed = {i: GraphInput(i, self._executor.convert_input(leaves[i]), self._inside) for i in moving}
        self.written: list[tuple[int, Leaf]] = []
        self.graph = self._new_graph()
        values, results, self.takes = self._capture(leaves)
        taken = {id(take.value): i for i, take in enumerate(self.takes)}
        self.results = [(r.input_index, taken.get(id(v)), v) for r, v in zip(self.layout.returns, results, strict=True)]
        self._large = self._directly_written_outputs(values)
        weak = WeakMethod(self._recapture) if self._large else None  # weak: a dropped call is freed at once
        self._replay = Replayer(self.graph, list(self._fed.values()), self.takes, random=self._in_torch, recapture=weak)
        in_order = [(given, i) for given, i, _ in self.results] == [(None, i) for i in range(len(self.takes))]
        self._as_made = in_order and self._replay.complete and not self.written

    def _new_graph(self) -> torch.cuda.CUDAGraph:
        return torch.cuda.CUDAGraph(keep_graph=True) if self._inside else torch.cuda.CUDAGraph()

    def _directly_written_outputs(self, values: Sequence[object]) -> dict[int, int]:
        """Return the slot of each output of at least `LARGE` bytes that an engine can write to the caller's memory, by
        its index in ``self.takes``. ``values``: the values of the captured call, by slot."""
        if self._in_torch or self.layout.writes or not self._copies_outputs:
            return {}
        filled = {id(values[slot]): slot for step in self.layout.steps for slot in step.gives}
        large = {i: take.value for i, take in enumerate(self.takes) if take.value.nbytes >= LARGE}
        return {i: filled[id(value)] for i, value in large.items() if id(value) in filled}

    @property
    def _copies_outputs(self) -> bool:
        """Whether the graph copies outputs from its own memory to memory of the caller."""
        return self._inside and not self.reuse and self.plan.output_device is None

    def _run(self, leaves: Sequence[Leaf], options: RunOptions) -> tuple[list[Leaf], list[Leaf]]:
        """Run the program on the graph's copies of the inputs; return all its values, by slot, and its outputs."""
        values = self.plan.template.copy()
        for given, slot, _ in self.plan.moves:
            values[slot] = self._fed[given].held if given in self._fed else leaves[given].detach()
        self._executor.run(values, self.plan, options)
        return values, self._executor.collect_outputs(values, leaves, evolve(self.plan, output_device=None))

    def _capture(self, leaves: Sequence[object]) -> tuple[list[object], list[object], list[GraphOutput]]:
        """Run the call once, so that it compiles and allocates, then capture it. Return all values of the call, by
        slot, the program's outputs, and a `GraphOutput` for each output in the graph's memory."""
        stream, caller = graph_copies.capture_stream(self._lane.device), self._lane.current_stream()
        options = RunOptions(stream, captured=True)
        stream.wait_stream(caller)
        try:
            with torch.cuda.stream(stream):
                self._run(leaves, options)  # compiles and allocates before the capture
                stream.synchronize()
            free_unused_memory()
            with capture(self.graph, self._pool, stream, self._in_torch):
                return self._record(leaves, options)
        finally:
            caller.wait_stream(stream)

    @torch.no_grad()
    def _recapture(self, leaves: Sequence[Leaf], outputs: Sequence[torch.Tensor | None]) -> GraphInstance:
        """Capture the call again; return an instance that writes large outputs to ``outputs``, where not None."""
        graph = self._new_graph()
        into = {slot: value for i, slot in self._large.items() if (value := outputs[i]) is not None}
        stream = graph_copies.capture_stream(self._lane.device)
        with capturing:
            with capture(graph, self._pool, stream, self._in_torch):
                _, _, takes = self._record(leaves, RunOptions(stream, captured=True, into=into))
            instantiate(graph)
        return make_instance(graph, list(self._fed.values()), takes)

    def _record(self, leaves: Sequence[Leaf], options: RunOptions) -> tuple[list[Leaf], list[Leaf], list[GraphOutput]]:
        """Run what the graph captures: copy the inputs, run the program, write buffers, and copy the outputs.

        Return all values of the call, by slot (see `Step`), the program's outputs, and a `GraphOutput` for each output
        that is not an input, parameter or buffer.
        """
        if self._inside:
            for feed in self._fed.values():
                feed.held.copy_(feed.source)
        values, results = self._run(leaves, options)
        self.plan.report_check_results(values, self.layout.checks)
        self.written = []
        for write, value in zip(self.layout.writes, self.layout.values_to_write(values), strict=True):
            if write.input_index is not None:
                self.written.append((write.input_index, value))
            elif values[write.buffer or 0] is not value:
                values[write.buffer or 0].copy_(value)
        given = {id(value) for value in options.into.values()}
        outputs = zip(self.layout.returns, results, strict=True)
        found = {id(v): v for r, v in outputs if isinstance(v, torch.Tensor) and not self._is_existing_tensor(r, v)}
        return values, results, [GraphOutput(v, self._copies_outputs and id(v) not in given) for v in found.values()]

    def _is_existing_tensor(self, output: Return, value: torch.Tensor) -> bool:
        """Return whether an output is itself an input, or a parameter or buffer on the device of outputs."""
        return output.input_index is not None or (output.held is not None and self.plan.is_on_output_device(value))

    def has_same_addresses(self, leaves: Sequence[Leaf]) -> bool:
        """Return whether the inputs that the graph reads in place have the same addresses as in the captured call."""
        for given, address in self.still:
            value = leaves[given]
            if value.data_ptr() != address or not has_plain_layout(value):
                return False
        return True

    def __call__(self, leaves: Sequence[object], stream: int) -> list[Leaf]:
        """Replay the graph for these inputs on the current stream, whose handle is ``stream``; return the outputs."""
        outputs: Sequence[torch.Tensor | None] = self._replay(leaves, stream)
        if self._as_made:
            return list(outputs)
        if not self._replay.complete:
            outputs = [m if m is not None else self._to_user(t.value) for m, t in zip(outputs, self.takes, strict=True)]
        if self.written:
            self._write_mutated_inputs(leaves)
        return [
            leaves[given] if given is not None else value if i is None else outputs[i]
            for given, i, value in self.results
        ]

    @torch.no_grad()
    def _write_mutated_inputs(self, leaves: Sequence[Leaf]) -> None:
        """Copy the new values that a replay has computed for mutated inputs to these tensors of the caller."""
        for given, value in self.written:
            leaves[given].copy_(value)

    def _to_user(self, output: torch.Tensor) -> torch.Tensor:
        """Return an output as the caller gets it: on the device of outputs, and cloned unless ``reuse`` is set."""
        if self.plan.output_device is not None:
            return output.to(self.plan.output_device)
        return output if self.reuse else output.clone()


class CudaGraphs:
    """The captured CUDA graphs of a worker, by call plan; beyond the limit the oldest graph is dropped.

    ``refused``: for each plan that cannot be captured, the reason; calls with such a plan run without graphs.
    """

    def __init__(self, limit: int, reuse: bool) -> None:
        self.limit, self.reuse = limit, reuse
        self.kept: dict[CallPlan, CapturedCall] = {}
        self.refused: dict[CallPlan, str] = {}
        self._seen: dict[CallPlan, dict[int, int]] = {}
        self._pool: object = None

    def find_or_capture(self, plan: CallPlan, leaves: Sequence[Leaf], worker: Any) -> CapturedCall | None:
        """Return the graph of a plan for these inputs; None at the first call with this plan, or if the capture fails.

        If an input that the graph reads in place has another address, the call is captured again, at most once per
        input. A sharded program reads no input in place: a capture runs the collectives once more, so all ranks must
        capture at the same call.
        """
        kept = self.kept.get(plan)
        if kept is not None and kept.has_same_addresses(leaves):
            return kept
        if plan in self.refused or torch.cuda.is_current_stream_capturing():
            return None
        seen = self._seen.get(plan)
        if seen is None:
            here = [(i, leaves[i]) for i, _, moved in plan.moves if not moved]
            places = {i: value.data_ptr() for i, value in here if value.numel() and has_plain_layout(value)}
            _evict_oldest(self._seen, 8 * self.limit)[plan] = places
            return None
        seen = {} if worker.executor.layout.program.sharding is not None else seen
        still = {i: at for i, at in seen.items() if leaves[i].data_ptr() == at and has_plain_layout(leaves[i])}
        self._seen[plan] = still
        del kept  # so that its memory is free for the new graph
        with torch.no_grad():
            return self._capture(plan, leaves, worker, still)

    def _capture(
        self, plan: CallPlan, leaves: Sequence[object], worker: Any, fixed_addresses: Mapping[int, int]
    ) -> CapturedCall | None:
        """Capture and keep a call of a `CudaWorker` with this plan; return None, with a warning, if it cannot be
        captured. ``fixed_addresses``: see `CapturedCall`."""
        reason = worker.executor.layout.capture_obstacle or None
        self.kept.pop(plan, None)
        if reason is None:
            while len(self.kept) >= self.limit:
                self.kept.pop(next(iter(self.kept)))
            if not self.kept:  # torch refuses a pool whose graphs are gone while a tensor has its memory
                self._pool = torch.cuda.graph_pool_handle()
            try:
                with capturing:
                    self.kept[plan] = CapturedCall(worker, plan, leaves, self._pool, self.reuse, fixed_addresses)
                return self.kept[plan]
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        _evict_oldest(self.refused, 8 * self.limit)[plan] = reason
        log.warning("a call runs without a CUDA graph, since it cannot be captured: %s", reason)
        return None


def _evict_oldest(store: dict[Any, Any], limit: int) -> dict[Any, Any]:
    """Remove the oldest items of a dict until it has fewer than ``limit``, and return the dict."""
    while len(store) >= limit:
        store.pop(next(iter(store)))
    return store
