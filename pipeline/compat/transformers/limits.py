"""What a compiled language model is for at most, and how more is done in several calls."""

from __future__ import annotations

from attrs import frozen

from pipeline.errors import ExecutionError, ShapeError


@frozen
class Limits:
    """The most that a compiled model is for: positions of the cache, rows, and tokens of a call; and for how many
    drafted tokens a call gives logits beside those of the last."""

    max_cache_len: int
    max_batch: int
    max_prompt_len: int
    max_draft_len: int = 0

    def calls(self, length: int, wanted: int) -> list[tuple[int, int]]:
        """The calls that take so many tokens: of each how many, and of how many of its last there are logits. All of
        them together have those of the ``wanted`` last tokens."""
        most = self.max_draft_len + 1
        chunks = [wanted % most] * (wanted % most > 0) + [most] * (wanted // most)
        first, before, found = chunks[0], length - wanted + chunks[0], list[tuple[int, int]]()
        while before > self.max_prompt_len:
            size = min(self.max_prompt_len, before - first)
            found.append((size, 1))
            before -= size
        return [*found, (before, first), *((chunk, chunk) for chunk in chunks[1:])]

    def check(self, rows: int, length: int) -> None:
        """Raise an error if there is no room for so many rows and tokens.

        Raises:
            ExecutionError: the cache has fewer positions.
            ShapeError: there are more rows.
        """
        if length > self.max_cache_len:
            raise ExecutionError(
                f"{length} tokens, and the cache has {self.max_cache_len} positions",
                "generate fewer (max_new_tokens), or compile with a larger max_cache_len",
            )
        if rows > self.max_batch:
            why = "its max_batch: each beam, and each of num_return_sequences, is a row"
            raise ShapeError("input_ids", 0, rows, (1, self.max_batch), why)
