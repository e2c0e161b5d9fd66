"""Store engines at a URL that fsspec opens, so that a fleet builds each engine once."""

from __future__ import annotations

import secrets

from attrs import field, frozen

from pipeline.aten.types import Leaf
from pipeline.errors import require
from pipeline.frozen import FrozenDict
from pipeline.records.wording import kind_of


@frozen
class FsspecStore:
    """An engine cache at a URL that fsspec opens: ``s3://bucket/engines``, ``gcs://…``, ``file:///mnt/shared/engines``.

    It needs the extra ``fsspec``, and the library of the protocol (``s3fs``, ``gcsfs``). Its size is unlimited: use
    the bucket's lifecycle rules. There are no locks: two machines may build the same engine at the same time.

    url: the folder, created when the first entry is saved; `ValueError` if fsspec does not know the protocol.
    options: arguments of fsspec's file system, such as ``{"profile": "ci"}``.
    """

    url: str
    options: FrozenDict[str, object] = field(factory=FrozenDict, converter=FrozenDict, hash=False)
    _system: Leaf = field(init=False, eq=False, repr=False)
    _root: str = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        require("fsspec", "fsspec")
        from fsspec.core import url_to_fs

        if not isinstance(self.url, str):
            raise TypeError(f"url is {kind_of(self.url)}, expected a str such as 's3://bucket/engines'")
        try:
            system, root = url_to_fs(self.url, **self.options)
        except ValueError as error:
            known = "fsspec.available_protocols() lists those that are installed"
            raise ValueError(f"an engine cache cannot be at {self.url}: {error}; {known}") from None
        object.__setattr__(self, "_system", system)
        object.__setattr__(self, "_root", root.rstrip("/"))

    def load(self, key: str) -> bytes | None:
        try:
            data: bytes = self._system.cat_file(self._path(key))
            return data
        except FileNotFoundError:
            return None

    def save(self, key: str, data: bytes) -> None:
        """Save an entry atomically: directly on object stores, else under another name that is then renamed."""
        path = self._path(key)
        if self._system.async_impl:
            self._system.pipe_file(path, data)
            return
        self._system.makedirs(self._root, exist_ok=True)
        part = f"{path}.{secrets.token_hex(4)}.part"
        self._system.pipe_file(part, data)
        self._system.mv(part, path)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}.engine"
