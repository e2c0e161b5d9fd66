"""``python -m benchmarks.soak URL --pid PID [--concurrency 32] [--seconds 300]``: requests to a server without a pause.

Posts rows of ``--width`` numbers as JSON, one a request: itself, or with ``--field`` as the only row of that field.
Writes benchmarks/results/soak_NAME.json: latencies, requests a second, and the memory of the server's processes every
few seconds. The exit code is 1 if a request failed, if a row got two different answers, or if memory grew by more than
5 % after the first quarter.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment

GROWTH = 1.05
"""How much more memory the server may have at the end than after a quarter of the time."""
CLOSE = 1e-4
"""How far answers to one row may differ: batches of other sizes sum in other orders."""


class Client(threading.Thread):
    """One caller, whose next request follows the last answer."""

    def __init__(self, url: str, bodies: list[Any], first: dict[int, Any], end: float) -> None:
        super().__init__(daemon=True)
        self.url, self.bodies, self.first, self.end = urllib.parse.urlsplit(url), bodies, first, end
        self.latencies: list[float] = []
        self.faults: list[str] = []

    def run(self) -> None:
        """Send requests until the end."""
        connection = http.client.HTTPConnection(str(self.url.hostname), self.url.port or 80, timeout=60)
        number = 0
        while time.monotonic() < self.end:
            place = number % len(self.bodies)
            start = time.perf_counter()
            try:
                self.check(place, self.answer(connection, self.bodies[place]))
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.faults.append(f"{type(error).__name__}: {error}")
                connection.close()
            self.latencies.append(time.perf_counter() - start)
            number += 1

    def answer(self, connection: http.client.HTTPConnection, body: Any) -> Any:
        """Return the answer to a request."""
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self.url.path or "/", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {text[:200]!r}")
        return json.loads(text)

    def check(self, place: int, answer: Any) -> None:
        """Note an answer that differs from the first to the same row."""
        first = self.first.setdefault(place, answer)
        if not torch.allclose(torch.tensor(first), torch.tensor(answer), rtol=CLOSE, atol=CLOSE):
            self.faults.append(f"row {place}: {answer}, first {first}")


def megabytes(pids: list[int]) -> float:
    """Return the resident memory of processes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def soak(url: str, pids: list[int], concurrency: int, seconds: float, width: int, field: str = "") -> dict[str, Any]:
    """Return latencies in milliseconds, requests a second, and the server's memory over time."""
    rows = torch.randn(64, width, generator=torch.Generator().manual_seed(0)).tolist()
    bodies = [{field: [row]} if field else row for row in rows]
    start, first = time.monotonic(), dict[int, Any]()
    clients = [Client(url, bodies, first, start + seconds) for _ in range(concurrency)]
    for client in clients:
        client.start()
    memory = []
    while any(client.is_alive() for client in clients):
        memory.append(round(megabytes(pids), 1))
        time.sleep(min(5.0, seconds / 20))
    latencies = [1e3 * latency for client in clients for latency in client.latencies]
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "concurrency": concurrency,
        "seconds": seconds,
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / seconds, 1),
        "milliseconds": {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": round(max(latencies), 2)},
        "memory_mb": memory,
        "memory_growth": round(memory[-1] / memory[len(memory) // 4], 4),
        "faults": [fault for client in clients for fault in client.faults],
    }


def main() -> int:
    """Run the soak, and write its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where a row of numbers is posted")
    parser.add_argument("--pid", type=int, nargs="*", default=[], help="the server's processes")
    parser.add_argument("--name", default="server", help="of the result's file")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--width", type=int, default=8, help="numbers in a row")
    parser.add_argument("--field", default="", help="the field of the request that has the row")
    options = parser.parse_args()
    found = soak(options.url, options.pid, options.concurrency, options.seconds, options.width, options.field)
    print(json.dumps({**found, "faults": found["faults"][:5]}, indent=2))
    print(f"written to {environment.save(f'soak_{options.name}', {**found, 'faults': len(found['faults'])}, ())}")
    return int(bool(found["faults"]) or (bool(options.pid) and found["memory_growth"] > GROWTH))


if __name__ == "__main__":
    sys.exit(main())
