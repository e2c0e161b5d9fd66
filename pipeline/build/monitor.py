"""Monitor a TensorRT build: report its progress, and stop it on request."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.build.memory import return_free_memory
from pipeline.trt import trt


class Monitor(trt.IProgressMonitor):  # type: ignore[misc,unused-ignore]
    """Monitor a TensorRT build: report its phases, return memory to the system between phases, and stop the
    build at its next step once ``stopped`` is set. TensorRT calls the methods from any thread; they must not raise."""

    def __init__(
        self, report_phase: Callable[[str], object] = lambda phase: None, stopped: threading.Event | None = None
    ) -> None:
        super().__init__()
        self.tell = report_phase
        self.stopped = threading.Event() if stopped is None else stopped

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        return_free_memory()
        self.tell(phase_name)

    def step_complete(self, phase_name: str, step: int) -> bool:
        return not self.stopped.is_set()

    def phase_finish(self, phase_name: str) -> None:
        return_free_memory()


@contextmanager
def interruptible(monitor: Monitor) -> Iterator[None]:
    """Return a context in which Ctrl-C stops the monitored build and raises `KeyboardInterrupt` afterwards (main thread
    only): TensorRT would ignore an exception in the monitor's methods. A user's own signal handler is not replaced."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = threading.Event()

    def stop(number: int, frame: object) -> None:
        interrupted.set()
        monitor.stopped.set()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted.is_set():
            raise KeyboardInterrupt
