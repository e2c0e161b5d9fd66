"""Models with packed sequences: what runs before, on and behind the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence


class Recurrent(nn.Module):
    """Layers for a function of rows [B, T, 3] and their lengths [B]."""

    def __init__(self, function: Callable[..., Any], kind: str = "LSTM", **options: Any) -> None:
        super().__init__()
        self.function = function
        self.layer = getattr(nn, kind)(3, 2, batch_first=True, **options)
        self.second = nn.LSTM(2, 2, batch_first=True)
        self.linear, self.embedding, self.drop = nn.Linear(2, 3), nn.Embedding(9, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        """[B, T, 3], [B] -> what the function makes of them"""
        return self.function(self, x, lengths)


def packed(x: Tensor, lengths: Tensor) -> PackedSequence:
    return pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)


def padded(sequence: PackedSequence, x: Tensor) -> Tensor:
    return pad_packed_sequence(sequence, batch_first=True, total_length=x.shape[1])[0]


def whole(m: Any, x: Tensor, lengths: Tensor) -> Any:
    output, state = m.layer(packed(x, lengths))
    return padded(output, x), state


def from_states(m: Any, x: Tensor, lengths: Tensor) -> Any:
    state = x.new_ones(1, x.shape[0], 2), x.new_ones(1, x.shape[0], 2) / 2
    output, state = m.layer(packed(x, lengths), state)
    rows, ends = pad_packed_sequence(output, batch_first=True, padding_value=-1.0, total_length=30)
    return rows, ends, state


def last(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    found: Tensor = m.layer(packed(x, lengths))[1][0][-1]
    return found


def two(m: Any, x: Tensor, lengths: Tensor) -> Any:
    first, state = m.layer(packed(x, lengths))
    dropped = PackedSequence(m.drop(first.data), first.batch_sizes, first.sorted_indices, first.unsorted_indices)
    output, state = m.second(dropped, state)
    return padded(output, x), state


def of_each_row(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    given = packed(x, lengths)
    first, _ = m.layer(given)
    data = torch.tanh(m.linear(first.data)) + given.data * 2
    output, _ = m.layer(first._replace(data=data))
    return padded(output, x)


def embedded(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    words = packed((x[..., 0].abs() * 64).long() % 9, lengths)
    output, _ = m.layer(words._replace(data=m.embedding(words.data)))
    return padded(output, x)


def written_meanwhile(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Rows and lengths are written to after they were packed."""
    x, lengths = x.clone(), lengths.sort(descending=True).values
    given = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
    x.mul_(-1)
    lengths.fill_(1)
    output, _ = m.layer(given)
    return padded(output, x)


def written(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """The data are written to, as a whole and through a view."""
    output, _ = m.layer(packed(x, lengths))
    output.data.mul_(-1)
    output.data[:, 0] += 1
    output, _ = m.second(output)
    return padded(output, x)


ONE_ENGINE: Final = {
    "whole": whole,
    "from states": from_states,
    "last": last,
    "two": two,
    "of each row": of_each_row,
    "embedded": embedded,
}
"""What engines compute alone."""


def to_the_longest(m: Any, x: Tensor, lengths: Tensor) -> Any:
    output, state = m.layer(packed(x, lengths))
    rows, ends = pad_packed_sequence(output, batch_first=True)
    return m.linear(rows), ends, state


def of_all_rows(m: Any, x: Tensor, lengths: Tensor) -> Any:
    output, _ = m.layer(packed(x, lengths))
    return output.data.sum(0), output.data.shape[0] * x.sum()


def of_other_data(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    output, _ = m.layer(packed(x, lengths))
    data = m.linear(output.data)
    output, _ = m.layer(output._replace(data=data / data.norm(dim=0)))
    return padded(output, x)


IN_PYTORCH: Final = {
    "to the longest": (to_the_longest, {"aten.item.default", "aten.slice.Tensor"}),
    "of all rows": (of_all_rows, {"pipeline.packed_rows.default"}),
    "written": (written, {"pipeline.packed_rows.default"}),
    "written meanwhile": (written_meanwhile, {"pipeline.packed_rows.default"}),
    "of other data": (of_other_data, {"pipeline.packed_rows.default", "pipeline.padded_rows.default"}),
}
"""What makes a number of data, or reads the data of all rows, and operators that run in PyTorch then."""


def listed(m: Any, x: Tensor, lengths: Tensor) -> Any:
    output, state = m.layer(pack_padded_sequence(x, [5, 3, 1], batch_first=True))
    return pad_packed_sequence(output, batch_first=True), state


def of_a_list(m: Any, x: Tensor, lengths: Tensor) -> Any:
    output, state = m.layer(pack_sequence([x[0], x[1][:3], x[2][:1]]))
    return pad_packed_sequence(output, batch_first=True), state


LISTED: Final = {"listed": listed, "of a list": of_a_list}
"""Lengths that are written in the model."""


class Scripted(nn.Module):
    """A layer on packed rows, as TorchScript takes it."""

    def __init__(self, longest: bool) -> None:
        super().__init__()
        self.layer, self.longest = nn.GRU(3, 2, batch_first=True, bidirectional=True), longest

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, 3], [B] -> [B, T, 4], [2, B, 2], [B]"""
        output, state = self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        if self.longest:
            rows, ends = pad_packed_sequence(output, batch_first=True)
        else:
            rows, ends = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        return rows, state, ends
