"""Write files atomically: readers see either the complete new file or none of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

FULL: Final = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
"""The errno values of a full disk, an exhausted quota or an exceeded file size limit."""


@contextlib.contextmanager
def replace_file(path: Path, *, permissions: int = 0o666, nbytes: Callable[[], int] = lambda: 0) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` atomically when the ``with`` block ends, and is deleted if the block
    raises. If the process is killed, the old file and the temporary file (``.NAME.….part``) remain.

    permissions: the mode, less the umask. nbytes: returns the expected size in bytes, for the error of a full disk.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: the file cannot be written; the message names it.
    """
    if path.exists() and not path.is_file():
        kind, code = ("a folder: name a file in it", errno.EISDIR) if path.is_dir() else ("not a file", errno.EINVAL)
        raise OSError(code, f"the path to write to is {kind}", str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), permissions)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"there is no folder to write {path.name} to", str(path.parent)) from None
    except OSError as error:
        why = f"{path.name} cannot be written to the folder: {error.strerror}"
        raise type(error)(error.errno, why, str(path.parent)) from None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        written = part.stat().st_size if part.exists() else 0
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL and error.filename in (None, str(part)):
            raise disk_full_error(error, path, max(nbytes(), written)) from error
        raise
    _sync_folder(path.parent)


def disk_full_error(error: OSError, path: object, size: int) -> OSError:
    """Return the error for a disk that has no space for a file of ``size`` bytes."""
    why = f"{error.strerror}: {size} bytes are to be written; free as much space, or choose another folder"
    return OSError(error.errno, why, str(path))


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
