"""Compute TensorRT's layer for non-maximum suppression, in PyTorch."""

from collections.abc import Iterator

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import Maybe, Outputs
from pipeline.trt import torch_dtype


def _corners(boxes: torch.Tensor, box_format: str) -> torch.Tensor:
    """Convert boxes, given as two corners or as centre and size, to [x1, y1, x2, y2] with the smaller corner first."""
    if box_format == "CENTER_SIZES":
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        return torch.cat([centre - half, centre + half], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], -1)


def _intersection_over_union(box: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of one box with each of several boxes."""
    sides = torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])
    shared = sides.clamp(min=0).prod(-1)
    area = (box[2:] - box[:2]).prod(-1) + (others[:, 2:] - others[:, :2]).prod(-1) - shared
    return torch.where(area > 0, shared / area, torch.zeros_like(area))


def _select_boxes(boxes: torch.Tensor, order: torch.Tensor, iou_threshold: float, max_boxes: int) -> Iterator[int]:
    """Yield the indices of boxes in the given order, except boxes that overlap a box yielded before (by more than
    ``iou_threshold``)."""
    while order.numel() and max_boxes > 0:
        best, order = int(order[0]), order[1:]
        max_boxes -= 1
        yield best
        order = order[_intersection_over_union(boxes[best], boxes[order]) <= iou_threshold]


def nms(
    layer: Layer,
    boxes: torch.Tensor,
    scores: torch.Tensor,
    max_boxes: torch.Tensor,
    iou_threshold: Maybe = None,
    score_threshold: Maybe = None,
) -> Outputs:
    """Return the selected boxes as (batch, class, box) indices, by batch and descending score; and their number."""
    corners = _corners(boxes.float(), layer.attribute("bounding_box_format"))
    limit = layer.attribute("topk_box_limit")
    at_most, above = (0.0 if value is None else float(value) for value in (iou_threshold, score_threshold))
    rows: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        found = []
        for kind in range(scores.shape[2]):
            own = corners[batch] if boxes.dim() == 3 else corners[batch, :, kind]
            values = scores[batch, :, kind].float()
            order = torch.sort(values, descending=True, stable=True).indices[:limit]
            order = order[values[order] > above]
            found += [(batch, kind, box) for box in _select_boxes(own, order, at_most, int(max_boxes))]
        rows += sorted(found, key=lambda row: -float(scores[row[0], row[2], row[1]]))
    selected = torch.tensor(rows, dtype=torch_dtype(layer.outputs[0].dtype)).reshape(-1, 3)
    return selected, torch.tensor(len(rows), dtype=torch_dtype(layer.outputs[1].dtype))
