"""Limits of a compiled language model, and the split of longer prompts into several calls."""

from __future__ import annotations

from attrs import frozen

from pipeline.errors import ExecutionError, ShapeError


@frozen
class Limits:
    """The limits of a compiled model: positions of the cache, rows, tokens of a call, and drafted tokens whose logits a
    call returns beside those of the last token."""

    max_cache_len: int
    max_batch: int
    max_prompt_len: int
    max_draft_len: int = 0

    def calls(self, length: int, wanted: int) -> list[tuple[int, int]]:
        """Return the calls for ``length`` tokens, each as (number of tokens, number of last tokens with logits).
        Together they return the logits of the last ``wanted`` tokens."""
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
