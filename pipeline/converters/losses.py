"""Decompose losses that torch decomposes wrongly."""

from __future__ import annotations

import torch

from pipeline.aten.types import Argument
from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor

MEAN = 1


@register_torch_trt_decomposition(aten.multilabel_margin_loss.default)
def multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Argument:
    """multilabel_margin_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor"""
    return multilabel_margin_loss_forward(self, target, reduction)[0]


@register_torch_trt_decomposition(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(self: Tensor, target: Tensor, reduction: int) -> tuple[Argument, Tensor]:
    """multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target).
    The labels of a row end before its first negative one; torch (2.13) adds the margins of label 0 for the rest."""
    scores, labels = torch.atleast_2d(self), torch.atleast_2d(target)
    classes = scores.shape[-1]
    place = torch.arange(classes, device=self.device)
    end = torch.where(labels < 0, place, classes).amin(-1, keepdim=True)
    given = place < end
    label = torch.where(given, labels, 0)
    is_target = (given.unsqueeze(-1) & (label.unsqueeze(-1) == place)).any(1)
    margins = (1 - scores.gather(-1, label).unsqueeze(-1) + scores.unsqueeze(1)).clamp(min=0)
    counted = given.unsqueeze(-1) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, margins, 0).sum((1, 2)) / classes
    if reduction:
        loss = loss.mean() if reduction == MEAN else loss.sum()
    return loss, is_target.to(self.dtype).reshape(self.shape)
