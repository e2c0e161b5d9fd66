"""Get the NCCL communicator of a process group, which TensorRT takes for the collectives of an engine."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from pipeline.errors import ExecutionError
from pipeline.runtime.ranks import group_of

NAME: Final = b"ncclComm_t"
"""The name that TensorRT expects of a capsule with a pointer to a communicator."""


def communicator(name: str) -> object:
    """Return the communicator of a process group on the current GPU, as a capsule.

    All ranks of the group call this at the same time: a group that has no communicator yet gets it by a collective.

    Raises:
        ExecutionError: the group is not one of NCCL.
    """
    import torch.distributed as dist

    group = group_of(name)
    pointer = getattr(group._get_backend(torch.device("cuda")), "_comm_ptr", None)
    if pointer is None:
        why = f"the engine's collectives need a process group of NCCL, and {name!r} is of {dist.get_backend(group)}"
        raise ExecutionError(why, "call init_process_group('nccl'), or compile with collectives_in_engine=False")
    if not pointer():
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    form = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return form(("PyCapsule_New", ctypes.pythonapi))(pointer(), NAME, None)
