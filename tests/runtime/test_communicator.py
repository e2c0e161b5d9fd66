"""The communicator of a process group, as TensorRT takes it."""

import ctypes
from types import SimpleNamespace

import pytest

from pipeline.runtime import communicator


def test_a_capsule_points_at_the_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(_get_backend=lambda device: SimpleNamespace(_comm_ptr=lambda: 0x1234))
    monkeypatch.setattr(communicator, "group_of", lambda name: group)
    capsule = communicator.communicator("0")
    form = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    assert form(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"ncclComm_t") == 0x1234
