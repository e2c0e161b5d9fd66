"""Check cache files as ssh checks its files: only their owner can write to them, and no file is a symbolic link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

ROOT: Final = 0
"""The user id of root, who is accepted as the owner of a cache."""
MODE: Final = 0o600
"""The file permissions of cache files: only the owner reads and writes."""


def open_private_file(path: Path) -> BinaryIO:
    """Open a cache file for reading, and update its modification time.

    Raises:
        FileNotFoundError: the file does not exist.
        OSError: the file or its folder belongs to another user, is writable by others, or is a link or not a regular
            file; the message says what to do.
    """
    check_private_folder(path.parent)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)  # without blocking on a pipe in its place
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{path} is a symbolic link, which is unsafe in a cache: delete it") from None
        raise
    file = os.fdopen(descriptor, "rb")
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is not a regular file: delete it")
        _check_cache_file(found, path)
        os.utime(descriptor if os.utime in os.supports_fd else path)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.EROFS:  # in a read-only folder
            file.close()
            raise
    return file


def make_private_folder(folder: Path) -> None:
    """Create a cache folder if it is missing; raise an `OSError` if other users own it or can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private_folder(folder)


def check_private_folder(folder: Path) -> None:
    """Raise an `OSError` if a folder belongs to another user, or others can write to it."""
    named = folder.lstat()
    if stat.S_ISLNK(named.st_mode):
        _check_owner(named, folder)
    _check_cache_file(folder.stat(), folder)


def _check_cache_file(file_stat: os.stat_result, path: Path) -> None:
    """Raise an `OSError` if a cache file or folder belongs to another user, or others can write to it."""
    _check_owner(file_stat, path)
    if hasattr(os, "geteuid") and file_stat.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(file_stat.st_mode)
        raise OSError(
            f"other users can write to {path} (mode {mode:o}), so they could run code here: run chmod go-w {path}"
        )


def _check_owner(file_stat: os.stat_result, path: Path) -> None:
    if hasattr(os, "geteuid") and file_stat.st_uid not in (os.geteuid(), ROOT):
        raise OSError(f"{path} belongs to another user ({file_stat.st_uid}): choose a folder of your own")
