"""Files of a cache: only their user writes them, and no link leads elsewhere, as ssh demands of its files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

ROOT: Final = 0
"""The user who can change everything anyway."""

MODE: Final = 0o600
"""The permissions of the files of a cache."""


def opened_private(path: Path) -> BinaryIO:
    """Open a file of a cache to read it, and mark it as used now.

    Raises:
        FileNotFoundError: there is none.
        OSError: it, or its folder, belongs to another user, can be written by others, or is a link or no file; the
            message says what to do.
    """
    check_private(path.parent)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)  # a pipe in its place would wait for a writer
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a symbolic link, which a cache does not follow: delete it") from None
        raise
    file = os.fdopen(descriptor, "rb")
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no file: delete it")
        _check(found, path)
        os.utime(descriptor if os.utime in os.supports_fd else path)
    except PermissionError:
        return file  # its folder can only be read
    except OSError as error:
        if error.errno == errno.EROFS:
            return file
        file.close()
        raise
    return file


def make_private(folder: Path) -> None:
    """Make the folder of a cache, if it is missing, and check it as `check_private`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise an `OSError` if a folder belongs to another user, or others can write to it, who could put files there."""
    named = folder.lstat()
    if stat.S_ISLNK(named.st_mode):
        _check_owner(named, folder)
    _check(folder.stat(), folder)


def _check(found: os.stat_result, path: Path) -> None:
    _check_owner(found, path)
    if hasattr(os, "geteuid") and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise OSError(f"others can write to {path} (mode {mode:o}), and so change what runs here: chmod go-w {path}")


def _check_owner(found: os.stat_result, path: Path) -> None:
    if hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), ROOT):
        raise OSError(f"{path} belongs to another user ({found.st_uid}): choose a folder of your own")
