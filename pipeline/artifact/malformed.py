"""Errors of malformed files, before the loader adds the file's name."""

from __future__ import annotations

from pipeline.errors import ArtifactError


class MalformedError(ArtifactError):
    """Malformed data and its place in the file; the loader turns it into the user's error."""

    def __init__(self, why: str, place: str = "", hint: str = "") -> None:
        super().__init__(f"{place}: {why}" if place else why, hint)
        self.why, self.place = why, place


class MissingOperatorError(ArtifactError):
    """A program calls an operator that this process lacks; the hint says what to import."""
