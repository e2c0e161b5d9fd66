"""Ways to damage a saved program: bytes, lengths, order, fields of the manifest, names, huge numbers."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from pipeline.artifact.container import MANIFEST, Reader, Writer

HUGE = (2**31, 2**32 - 1, 2**63, 2**64 - 1)


def flipped(data: bytes, chance: random.Random) -> bytes:
    """One byte differs."""
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :]


def truncated(data: bytes, chance: random.Random) -> bytes:
    """The end is missing."""
    return data[: chance.randrange(len(data))]


def removed(data: bytes, chance: random.Random) -> bytes:
    """A part in the middle is missing."""
    at = chance.randrange(len(data) - 1)
    return data[:at] + data[at + chance.randrange(1, min(8192, len(data) - at)) :]


def inserted(data: bytes, chance: random.Random) -> bytes:
    """There is more than there was."""
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randrange(1, 8192)) + data[at:]


def swapped(data: bytes, chance: random.Random) -> bytes:
    """Two pages change places, if they differ; else a byte."""
    pages = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    a, b = chance.sample(range(len(pages)), 2)
    pages[a], pages[b] = pages[b], pages[a]
    made = b"".join(pages)
    return made if made != data else flipped(data, chance)


def enlarged(data: bytes, chance: random.Random) -> bytes:
    """A number of the zip structure is huge."""
    places = [i for sign in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for i in _all(data, sign)]
    at = chance.choice(places) + chance.randrange(4, 40)
    made = data[:at] + struct.pack("<Q", chance.choice(HUGE))[:4] + data[at + 4 :]
    return made if made != data else flipped(data, chance)


def renamed(data: bytes, chance: random.Random) -> bytes:
    """An entry has another name, which may lead elsewhere."""
    name = chance.choice([b"engines/0.plan", b"manifest.json", b"networks/0.json"])
    other = chance.choice([b"../../../../etc/passwd", b"/etc/passwd", b"C:\\x", b"..", b"\xff\xfe\x00"])
    return data.replace(name, (other * 9)[: len(name)], chance.randrange(1, 3))


def _all(data: bytes, sign: bytes) -> list[int]:
    found, at = [], data.find(sign)
    while at >= 0:
        found.append(at)
        at = data.find(sign, at + 1)
    return found


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flipped, truncated, removed, inserted, swapped, enlarged, renamed),
)


def entries_of(data: bytes) -> dict[str, bytes]:
    """The entries of a file by name."""
    reader = Reader(io.BytesIO(data), "file")
    raw = {name: reader.read_at(entry.data_offset, entry.size) for name, entry in reader.entries.items()}
    return {name: reader.read(name, hashlib.sha256(data).hexdigest()) for name, data in raw.items()}


def rewritten(entries: dict[str, bytes], manifest: Any) -> bytes:
    """A file of these entries, with digests that are right."""
    file = io.BytesIO()
    with Writer(file) as writer:
        for name, data in entries.items():
            if name != MANIFEST:
                writer.add(name, [data], len(data))
        if isinstance(manifest, dict) and "entries" in manifest:
            manifest = {**manifest, "entries": sorted(writer.digests.items())}
        writer.finish(json.dumps(manifest).encode())
    return file.getvalue()
