"""The sizes and limits of a compiled language model: its engines' profiles, and how a long prompt is split.
A prompt that is too long for one call of the program is split into several calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from attrs import frozen

from pipeline.errors import ExecutionError, ShapeError
from pipeline.export_fixes.requests import Tuned


@frozen
class Limits:
    """The limits of a compiled language model: the numbers of cache positions, of rows, of tokens in a call, and of
    draft tokens whose logits a call returns in addition to the last token's."""

    max_cache_len: int
    max_batch: int
    max_prompt_len: int
    max_draft_len: int = 0

    def split_tokens(self, token_count: int, logit_count: int) -> list[tuple[int, int]]:
        """Split ``token_count`` tokens into calls within the limits, such as (8, 2): 8 tokens, and the logits of the
        last 2. Together, the calls return the logits of the last ``logit_count`` tokens."""
        most = self.max_draft_len + 1
        chunks = [logit_count % most] * (logit_count % most > 0) + [most] * (logit_count // most)
        first, before, found = chunks[0], token_count - logit_count + chunks[0], list[tuple[int, int]]()
        while before > self.max_prompt_len:
            size = min(self.max_prompt_len, before - first)
            found.append((size, 1))
            before -= size
        return [*found, (before, first), *((chunk, chunk) for chunk in chunks[1:])]

    def check_call(self, row_count: int, sequence_length: int) -> None:
        """Raise an error if a call with this number of rows and tokens exceeds the limits."""
        if sequence_length > self.max_cache_len:
            raise ExecutionError(
                f"the sequence has {sequence_length} tokens, and the cache has {self.max_cache_len} positions",
                "generate fewer tokens (max_new_tokens), or compile with a larger max_cache_len",
            )
        if row_count > self.max_batch:
            why = "its max_batch: each beam, and each of num_return_sequences, is a row"
            raise ShapeError("input_ids", 0, row_count, (1, self.max_batch), why)


DimSizes: TypeAlias = dict[int, int | Tuned]
"""The size of each dim of a tensor, by the dim's index: an int, or a range for which engines are tuned."""
Example: TypeAlias = torch.Tensor | Mapping[str, torch.Tensor] | Sequence[Mapping[str, torch.Tensor]] | None
"""An example of an encoder's input: a tensor, or a processor's output for one prompt or for each of several prompts."""


@frozen
class Sizes:
    """The sizes for which a language model is compiled: cache positions, rows, tokens in a call, draft tokens, encoder
    tokens, and the prompt lengths that get engines of fixed sizes."""

    cache: int
    batch: int
    prompt: int
    draft: int
    encoded: int
    fixed: frozenset[int]

    def __attrs_post_init__(self) -> None:
        named = {"max_cache_len": self.cache, "max_batch": self.batch, "max_prompt_len": self.prompt}
        for name, size in {**named, "max_encoder_len": self.encoded}.items():
            if type(size) is not int:
                raise TypeError(f"{name} is {size!r}: expected an integer, at least 1")
            if size < 1:
                raise ValueError(f"{name} is {size}: expected at least 1")
        if self.prompt > self.cache:
            raise ValueError(f"max_prompt_len is {self.prompt}: expected at most max_cache_len, {self.cache}")
        if not 0 <= self.draft < self.prompt:
            raise ValueError(f"max_draft_len is {self.draft}: expected 0 to max_prompt_len - 1, {self.prompt - 1}")
        for length in self.fixed:
            if not isinstance(length, int) or not 2 <= length <= self.prompt:
                raise ValueError(f"prompt_lens has {length!r}: expected ints from 2 to max_prompt_len ({self.prompt})")

    @property
    def row_dim(self) -> DimSizes:
        """Return the batch dim's range as ``{0: range}``, tuned for the largest batch; {} if the largest batch is 1."""
        return {0: dim_up_to("batch", self.batch)} if self.batch > 1 else {}

    def decoder_profiles(self) -> list[tuple[DimSizes, int | Tuned, int | Tuned]]:
        """Return (batch dim, number of tokens, number of logits) for each profile of the decoder, such as (``{0: 4}``,
        16, 1); a size is an int or a range (`Tuned`). There are profiles for single tokens, for drafts, for each fixed
        prompt length with the maximum batch, and for prompts of any length."""
        every: DimSizes = {0: self.batch} if self.batch > 1 else {}
        found: list[tuple[DimSizes, int | Tuned, int | Tuned]] = [(self.row_dim, 1, 1)]
        drafts = _fixed_or_up_to("tokens", self.draft + 1, minimum=2), _fixed_or_up_to("wanted", self.draft + 1)
        found += [(self.row_dim, *drafts)] * (self.draft > 0)
        found += ((every, length, 1) for length in sorted(self.fixed))
        prompts = self.row_dim, _fixed_or_up_to("tokens", self.prompt, minimum=2), drafts[1]
        return found + [prompts] * (self.prompt > 1 and prompts not in found)

    @property
    def limits(self) -> Limits:
        """Return the sizes that a decoder call must not exceed: cache positions, rows, tokens, draft tokens."""
        return Limits(self.cache, self.batch, self.prompt, self.draft)


def dim_up_to(name: str, maximum: int, minimum: int = 1) -> Tuned:
    """Return a dynamic dim from ``minimum`` to ``maximum``; engines are tuned for ``maximum``."""
    return Tuned(name, minimum, maximum, maximum)


def _fixed_or_up_to(name: str, maximum: int, minimum: int = 1) -> int | Tuned:
    """Return a dynamic dim as `dim_up_to` does, or an integer if ``minimum`` and ``maximum`` are equal."""
    return dim_up_to(name, maximum, minimum) if maximum > minimum else maximum
