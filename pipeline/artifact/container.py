"""The container of a saved program: a zip file whose entries start at multiples of 4 KiB.
Text entries are compressed; other entries are not, so that they can be memory-mapped. The file states the size of
uncompressed text, which is limited.

A file's content has exactly one valid encoding: the reader compares every byte outside the entries' data with the
writer's output. The archive's comment is the SHA-256 of the manifest, the last entry, which contains the digests of all
other entries. So every altered byte is detected before the data is used.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from attrs import evolve, frozen

from pipeline.artifact.hashing import ChecksumWriter, SharedFile
from pipeline.errors import ArtifactError

ALIGNMENT = 4096
MANIFEST = "manifest.json"
TEXT = ".json"
MOST_TEXT = 1 << 22
"""The maximum uncompressed bytes of all compressed text in a file; further text is not compressed. Records take up to
80 times the memory of their text, so a small file must not expand to much text."""
NAME = re.compile(r"[a-z]+(/[0-9]{1,6})?\.(json|plan|safetensors)", re.ASCII)

_OF_TORCH = re.compile(rb"[^/]+/(data\.pkl|(data|code|models)/.*)", re.S)
"""Matches the first entry of files that torch.save, torch.jit.save or torch.export.save wrote, for a better error."""
_SMALL, _BIG = 0xFFFFFFFF, 1 << 62
_MOST = 1 << 16
_DATE = 0x21  # 1980-01-01, the first date of zip: equal programs are equal files
_LOCAL, _CENTRAL = struct.Struct("<IHHHHHIIIHH"), struct.Struct("<IHHHHHHIIIHHHHHII")
_END, _END64, _LOCATOR = struct.Struct("<IHHHHIIH"), struct.Struct("<IQHHIIQQQQ"), struct.Struct("<IIQI")
_COMMENT = 64


@frozen
class ZipEntry:
    """An entry of a saved program's zip file: the offset of its header, the size of its data there, and the CRC-32 and
    size (``inflated``) of the uncompressed data. ``inflated`` is None if the entry is stored uncompressed."""

    name: str
    offset: int
    size: int
    crc: int = 0
    inflated: int | None = None

    @property
    def data_offset(self) -> int:
        return self.offset + len(self.local_header())

    @property
    def end_offset(self) -> int:
        return self.data_offset + self.size

    def local_header(self) -> bytes:
        """Return the entry's local zip header, padded so that the data after it is aligned."""
        name, big = self.name.encode(), self.size >= _SMALL
        wide = struct.pack("<HHQQ", 1, 16, self.size, self.size) if big else b""
        pad = -(self.offset + _LOCAL.size + len(name) + len(wide) + 6) % ALIGNMENT
        extra = wide + struct.pack("<HHH", 0xD935, 2 + pad, ALIGNMENT) + bytes(pad)
        version = 45 if big else 20
        return _LOCAL.pack(0x04034B50, version, *self._shared_header_fields(), len(name), len(extra)) + name + extra

    def _shared_header_fields(self) -> tuple[int, ...]:
        """Return the fields that an entry's two headers share: flags, method, time, date, CRC-32, sizes."""
        size = min(self.size, _SMALL)
        inflated, method = (size, 0) if self.inflated is None else (self.inflated, 8)
        return 0, method, 0, _DATE, self.crc, size, inflated

    def directory_row(self) -> bytes:
        """Return the entry's row in the zip directory, as bytes."""
        name, big, far = self.name.encode(), self.size >= _SMALL, self.offset >= _SMALL
        wide = struct.pack("<QQ", self.size, self.size) * big + struct.pack("<Q", self.offset) * far
        extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
        offset, version = min(self.offset, _SMALL), 45 if wide else 20
        fields = (0x02014B50, version, version, *self._shared_header_fields(), len(name), len(extra))
        return _CENTRAL.pack(*fields, 0, 0, 0, 0, offset) + name + extra


def zip_directory(entries: Sequence[ZipEntry], manifest_digest: str) -> bytes:
    """Return the bytes after the entries: the zip directory, and the end record with ``manifest_digest``."""
    start = entries[-1].end_offset if entries else 0
    rows = b"".join(entry.directory_row() for entry in entries)
    count, wide = len(entries), b""
    if start >= _SMALL:
        wide = _END64.pack(0x06064B50, _END64.size - 12, 45, 45, 0, 0, count, count, len(rows), start)
        wide += _LOCATOR.pack(0x07064B50, 0, start + len(rows), 1)
    end = _END.pack(0x06054B50, 0, 0, count, count, len(rows), min(start, _SMALL), _COMMENT)
    return rows + wide + end + manifest_digest.encode()


class Writer(ChecksumWriter):
    """Write the entries of a saved program in order to a seekable file, with the manifest as the last entry."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.entries: list[ZipEntry] = []
        self.digests: dict[str, str] = {}
        self.text = 0

    def add(self, name: str, parts: Iterable[memoryview | bytes], size: int, known_digest: str = "") -> str:
        """Write an entry, given in parts of ``size`` bytes in all; return the SHA-256 of its bytes in the file.
        ``known_digest``: this SHA-256, if the caller has it; never for ``.json`` entries, which are compressed."""
        entry = ZipEntry(name, self.entries[-1].end_offset if self.entries else 0, size)
        if name.endswith(TEXT) and self.text + size <= MOST_TEXT:
            self.text += size
            data = b"".join(parts)
            deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            parts = [deflate.compress(data) + deflate.flush()]
            entry = evolve(entry, size=len(parts[0]), crc=zlib.crc32(data), inflated=size)
        self.file.write(entry.local_header())
        self.digests[name], crc = self.write(parts, entry.size, known_digest)
        if entry.inflated is None:
            entry = evolve(entry, crc=crc)
        self.file.seek(entry.offset)
        self.file.write(entry.local_header())
        self.file.seek(entry.end_offset)
        self.entries.append(entry)
        return self.digests[name]

    def finish(self, manifest: bytes) -> None:
        digest = self.add(MANIFEST, [manifest], len(manifest))
        self.file.write(zip_directory(self.entries, digest))


class Reader:
    """Read the entries of a saved program's file by name. The constructor checks every byte outside the entries' data;
    it raises an `ArtifactError` if the file is not a saved program, is truncated, or was altered."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = SharedFile(file), name
        self.size, self.read_at = self.file.size, self.file.read_at
        if self.read_at(0, 4) != b"PK\x03\x04":
            raise ArtifactError(f"{name} is not a saved program", "pass a file that compiled.save(path) wrote")
        if _OF_TORCH.fullmatch(self.read_at(30, int.from_bytes(self.read_at(26, 2), "little"))):
            hint = "read it with torch.load, torch.jit.load or torch.export.load; pass a file that compiled.save wrote"
            raise ArtifactError(f"{name} was saved by torch, and is not a compiled program", hint)
        try:
            found, digest = self._read_entries_and_manifest_digest()
        except (struct.error, UnicodeDecodeError, IndexError):
            raise self.damage_error("the end of the file is missing or was altered") from None
        self.entries = {entry.name: entry for entry in found}
        self.manifest = self.read(MANIFEST, digest)

    def damage_error(self, why: str) -> ArtifactError:
        return ArtifactError(f"{self.name} is truncated or was altered: {why}", "copy or save the file again")

    def _read_entries_and_manifest_digest(self) -> tuple[list[ZipEntry], str]:
        at = self.size - _END.size - _COMMENT
        if at < 0:
            raise self.damage_error("the end of the file is missing")
        end = _END.unpack(self.read_at(at, _END.size))
        digest = self.read_at(at + _END.size, _COMMENT).decode("ascii")
        start, length = end[6], end[5]
        if start == _SMALL:
            at -= _LOCATOR.size + _END64.size
            start = _END64.unpack(self.read_at(max(at, 0), _END64.size))[9]
        if end[0] != 0x06054B50 or start + length != at or length > _MOST * 128:
            raise self.damage_error("the end of the file was altered")
        entries = list(_parse_directory(self.read_at(start, length)))
        self._check_bytes_outside_data(entries, start, digest)
        return entries, digest

    def _check_bytes_outside_data(self, entries: Sequence[ZipEntry], start: int, digest: str) -> None:
        """Raise an error if any byte outside the entries' data differs from what the writer would write. ``start``: the
        offset of the zip directory; ``digest``: the manifest's SHA-256."""
        names = [entry.name for entry in entries]
        if len({*names}) != len(names) or names[-1:] != [MANIFEST]:
            raise self.damage_error("the list of entry names was altered")
        if sum(entry.inflated or 0 for entry in entries) > MOST_TEXT:
            raise self.damage_error(f"its text entries have more bytes than a saved program can have, {MOST_TEXT}")
        offset = 0
        for entry in entries:
            header = entry.local_header()
            if entry.offset != offset or self.read_at(offset, len(header)) != header or entry.end_offset > start:
                raise self.damage_error(f"the header of entry {entry.name} was altered")
            offset = entry.end_offset
        if offset != start or self.read_at(start, self.size) != zip_directory(entries, digest):
            raise self.damage_error("the zip directory, which lists its entries, was altered")

    def verify(self, entry_name: str, expected_digest: str) -> ZipEntry:
        """Check an entry's data against its SHA-256, and return the entry. Thread-safe."""
        entry = self._find_entry(entry_name)
        if self.file.sha256(entry.data_offset, entry.size) != expected_digest:
            raise self.damage_error(f"entry {entry_name} was altered")
        return entry

    def _find_entry(self, entry_name: str) -> ZipEntry:
        if entry_name not in self.entries:
            raise self.damage_error(f"the file has no entry {entry_name}")
        return self.entries[entry_name]

    def read(self, entry_name: str, expected_digest: str) -> bytes:
        """Return an entry's data, checked against its SHA-256 and uncompressed."""
        entry = self._find_entry(entry_name)
        data = self.read_at(entry.data_offset, entry.size)
        if hashlib.sha256(data).hexdigest() != expected_digest:
            raise self.damage_error(f"entry {entry_name} was altered")
        return self._decompress(entry, data)

    def _decompress(self, entry: ZipEntry, data: bytes) -> bytes:
        """Uncompress the data of an entry to the size that the entry states."""
        if entry.inflated is None:
            return data
        inflate, found = zlib.decompressobj(-zlib.MAX_WBITS), b""
        with suppress(zlib.error):
            found = inflate.decompress(data, entry.inflated + 1)
        ends = inflate.eof and not inflate.unused_data and len(found) == entry.inflated
        if not ends or zlib.crc32(found) != entry.crc:
            raise self.damage_error(f"entry {entry.name} was altered")
        return found


def _parse_directory(directory: bytes) -> Iterator[ZipEntry]:
    """Yield the entries in the rows of a zip directory; the caller checks the rows' other fields."""
    at = 0
    while at < len(directory):
        fields = _CENTRAL.unpack_from(directory, at)
        method, crc, size, inflated, length, extra, offset = *fields[4:5], *fields[7:12], fields[16]
        at += _CENTRAL.size
        name, wide = directory[at : at + length].decode("ascii"), directory[at + length + 4 : at + length + extra]
        at += length + extra
        if size == _SMALL:
            size, wide = struct.unpack_from("<Q", wide)[0], wide[16:]
        if offset == _SMALL:
            offset = struct.unpack_from("<Q", wide)[0]
        if not NAME.fullmatch(name) or max(size, offset) > _BIG or (method == 8 and not name.endswith(TEXT)):
            raise IndexError(name)
        yield ZipEntry(name, offset, size, crc, inflated if method == 8 else None)
