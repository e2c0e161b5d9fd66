"""Work that a cached compilation starts on other threads while its model is captured: hashing the weights, and checking
the plans that a similar model was last compiled to. A result is used only if it turns out to be what the compilation
needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch
from attrs import field, frozen

from pipeline.artifact.engine_entry import Buffer, unpacked
from pipeline.artifact.engine_key import bytes_digest, tensor_bytes, tensor_digest
from pipeline.artifact.engine_store import FileStore
from pipeline.artifact.program_key import place
from pipeline.artifact.sums import THREADS
from pipeline.program import version

MOST: Final = 64
"""A hint names no more engines than this."""
SMALL: Final = 1 << 16
"""Up to this many bytes, hashing is faster than queueing it on a thread."""
PLAIN: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@frozen
class Hashed:
    """A tensor whose digest is being computed, and how often it had been written to before."""

    tensor: torch.Tensor
    version: int
    digest: Future[str]


@frozen(eq=False)
class Begun:
    """The work in progress, by the location of each tensor and the key of each engine."""

    threads: ThreadPoolExecutor
    hashed: dict[tuple[object, ...], Hashed] = field(factory=dict)
    plans: dict[str, Future[tuple[str, Buffer] | None]] = field(factory=dict)

    @classmethod
    def of(cls, model: object, files: FileStore, hint: str) -> Begun:
        """Start the work for a model, and for the engines that a hint's entry names."""
        begun = cls(ThreadPoolExecutor(max(2, THREADS - 1)))
        for key in engines_of(_quietly(files.load, hint)) if hint else ():
            begun.plans[key] = begun.threads.submit(_quietly, plan_of, files, key)
        for tensor in _tensors(model):
            plain = type(tensor) in PLAIN and not tensor.is_meta and tensor.layout == torch.strided
            counts = plain and not tensor.is_inference()  # torch does not count writes to inference tensors
            if counts and (at := place(tensor)) not in begun.hashed:
                begun.hashed[at] = Hashed(tensor, version(tensor), begun.digest(tensor))
        return begun

    def digest(self, tensor: torch.Tensor) -> Future[str]:
        """The digest of a tensor; a small one is hashed at once. A thread receives the bytes and hashes them in one
        call: every further step would wait until the capturing thread releases Python's lock."""
        near = tensor.device.type == "cpu" and tensor.is_contiguous()
        data = _quietly(tensor_bytes, tensor) if near else None
        if data is None:
            return self.threads.submit(tensor_digest, tensor)
        if data.nbytes > SMALL:
            return self.threads.submit(bytes_digest, data)
        done: Future[str] = Future()
        done.set_result(bytes_digest(data))
        return done

    def known(self, tensor: torch.Tensor) -> str | None:
        """The digest of a tensor's values, if it was hashed and has not been written to since."""
        found = self.hashed.get(place(tensor))
        if found is None or found.version != version(tensor) or found.digest.exception() is not None:
            return None
        return found.digest.result()

    def plan(self, key: str) -> tuple[str, Buffer] | None:
        """The digest and the plan of an engine, if it was read."""
        found = self.plans.get(key)
        return None if found is None else found.result()

    def end(self) -> None:
        """Drop the work that has not started; threads finish what they are doing."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def plan_of(files: FileStore, key: str) -> tuple[str, Buffer] | None:
    """The digest and the plan of an engine that a store has, checked against each other; None without an entry.

    Raises:
        CorruptEntryError: the entry was altered.
    """
    opened = files.opened(key)
    if opened is None:
        return None
    with opened[0] as file:
        entry, plan = unpacked(file, opened[1], key)
    return entry.digest, plan


def hint_of(keys: list[str]) -> bytes:
    """Return a hint's entry: the keys of engines."""
    return json.dumps(keys).encode()


def engines_of(data: bytes | None) -> list[str]:
    """The keys that a hint's entry names; none if it is missing or malformed."""
    try:
        found = json.loads(data or b"[]")
    except (ValueError, RecursionError):
        return []
    return [key for key in found if isinstance(key, str)][:MOST] if isinstance(found, list) else []


def _quietly(act: Callable[..., Any], *args: object) -> Any:
    """Return the result of an action, or None: errors here are reported when the result is really needed."""
    try:
        return act(*args)
    except Exception:
        return None


def _tensors(model: object) -> Iterator[torch.Tensor]:
    if isinstance(model, torch.export.ExportedProgram):
        yield from model.state_dict.values()
        yield from (value for value in model.constants.values() if isinstance(value, torch.Tensor))
    elif isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        yield from model.parameters()
        yield from model.buffers()
