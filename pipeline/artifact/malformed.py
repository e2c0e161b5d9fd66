"""The errors of files whose content is wrong, before the loader says which file it is."""

from __future__ import annotations

from pipeline.errors import ArtifactError


class MalformedError(ArtifactError):
    """Malformed data, with its place in the file: the loader turns it into the user's error."""

    def __init__(self, why: str, place: str = "", hint: str = "") -> None:
        super().__init__(f"{place}: {why}" if place else why, hint)
        self.why, self.place = why, place


class MissingOperatorError(ArtifactError):
    """An operator that a program calls and this process does not have; the hint says what to import."""
