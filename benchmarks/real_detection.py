"""Detectors at real size."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.real_models import Row, of_library, of_transformers
from benchmarks.signals import floats


class Conv(nn.Sequential):
    """A convolution, a batch normalization and SiLU."""

    def __init__(self, channels: int, out: int, size: int = 1, stride: int = 1) -> None:
        convolution = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(out, 1e-3), nn.SiLU())


class Bottleneck(nn.Module):
    """Two convolutions, and a shortcut past them."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second, self.shortcut = Conv(channels, channels, 3), Conv(channels, channels, 3), shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W] -> [N, C, H, W]"""
        y: torch.Tensor = self.second(self.first(x))
        return x + y if self.shortcut else y


class Partial(nn.Module):
    """YOLOv8's C2f: half of the channels go through bottlenecks, and all that they return is joined."""

    def __init__(self, channels: int, out: int, depth: int, shortcut: bool) -> None:
        super().__init__()
        self.first = Conv(channels, out)
        self.blocks = nn.ModuleList(Bottleneck(out // 2, shortcut) for _ in range(depth))
        self.last = Conv((2 + depth) * out // 2, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W] -> [N, out, H, W]"""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined


class Pyramid(nn.Module):
    """YOLOv8's SPPF: poolings one after the other, joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = Conv(channels, channels // 2), Conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W] -> [N, C, H, W]"""
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined


class Head(nn.Module):
    """Boxes as distributions over 16 distances to each side, and scores of 80 classes, at one stride."""

    def __init__(self, channels: int, boxes: int, scores: int) -> None:
        super().__init__()
        self.boxes = nn.Sequential(Conv(channels, boxes, 3), Conv(boxes, boxes, 3), nn.Conv2d(boxes, 64, 1))
        self.scores = nn.Sequential(Conv(channels, scores, 3), Conv(scores, scores, 3), nn.Conv2d(scores, 80, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, C, H, W] -> distances [N, 4, H * W], scores [N, 80, H * W]"""
        bins = torch.arange(16, dtype=x.dtype, device=x.device)
        found = self.boxes(x).flatten(2).unflatten(1, (4, 16)).softmax(2)
        return (found * bins[:, None]).sum(2), self.scores(x).flatten(2).sigmoid()


class Yolo(nn.Module):
    """A detector as YOLOv8-x: widths and depths of its card, distances in place of boxes."""

    def __init__(
        self, widths: tuple[int, ...] = (80, 160, 320, 640, 640), depths: tuple[int, ...] = (3, 6, 6, 3)
    ) -> None:
        super().__init__()
        self.stem = Conv(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(Conv(before, after, 3, 2), Partial(after, after, depth, True))
            for before, after, depth in zip(widths, widths[1:], depths, strict=False)
        )
        small, middle, large = widths[2:]
        self.pool, self.up = Pyramid(large), nn.Upsample(scale_factor=2)
        self.joined = nn.ModuleList(
            [
                Partial(large + middle, middle, 3, False),
                Partial(middle + small, small, 3, False),
                Partial(small + middle, middle, 3, False),
                Partial(middle + large, large, 3, False),
            ]
        )
        self.down = nn.ModuleList([Conv(small, small, 3, 2), Conv(middle, middle, 3, 2)])
        self.heads = nn.ModuleList(Head(width, max(64, small // 4), max(80, small)) for width in widths[2:])

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 3, H, W] -> distances [N, 4, P] and scores [N, 80, P] of all places"""
        x, found = self.stem(pixel_values), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        third, fourth, fifth = found[1], found[2], self.pool(found[3])
        middle = self.joined[0](torch.cat([self.up(fifth), fourth], 1))
        small = self.joined[1](torch.cat([self.up(middle), third], 1))
        middle = self.joined[2](torch.cat([self.down[0](small), middle], 1))
        large = self.joined[3](torch.cat([self.down[1](middle), fifth], 1))
        each = [head(x) for head, x in zip(self.heads, (small, middle, large), strict=True)]
        return torch.cat([boxes for boxes, _ in each], 2), torch.cat([scores for _, scores in each], 2)


class MaskRCNN(nn.Module):
    """Mask R-CNN up to its proposals, and its heads on as many regions: what comes between, ROI align and the choice
    among boxes, is not dense."""

    def __init__(self) -> None:
        super().__init__()
        model = of_library(
            "torchvision", "models.detection.maskrcnn_resnet50_fpn", weights=None, weights_backbone=None
        )()
        self.backbone, self.proposals = model.backbone, model.rpn.head
        self.boxes, self.predictor = model.roi_heads.box_head, model.roi_heads.box_predictor
        self.masks, self.mask_predictor = model.roi_heads.mask_head, model.roi_heads.mask_predictor

    def forward(self, pixel_values: torch.Tensor, regions: torch.Tensor, masked: torch.Tensor) -> tuple[object, ...]:
        """[N, 3, H, W], [R, 256, 7, 7], [M, 256, 14, 14] -> proposals of each level; scores, boxes and masks"""
        levels = list(self.backbone(pixel_values).values())
        return self.proposals(levels), self.predictor(self.boxes(regions)), self.mask_predictor(self.masks(masked))


class Detections(nn.Module):
    """RT-DETR's scores and boxes: what else it returns has infinities, for places at the edge."""

    def __init__(self) -> None:
        super().__init__()
        self.model = of_transformers("RTDetrForObjectDetection", "RTDetrConfig", **RT_DETR)()

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 3, H, W] -> [N, queries, classes], [N, queries, 4]"""
        found = self.model(pixel_values=pixel_values)
        return found.logits, found.pred_boxes


RT_DETR = {
    "use_timm_backbone": False,
    "anchor_image_size": [640, 640],
    "num_labels": 80,
}

ROWS = (
    Row(
        "yolov8-x",
        "whole, 68 M (written here); 640², batch 8",
        Yolo,
        {"pixel_values": floats(8, 3, 640, 640)},
        library="",
        convolutions=True,
        small=True,
        heavy=2,
    ),
    Row(
        "rt-detr-r50",
        "whole, 42 M; 640², batch 4",
        Detections,
        {"pixel_values": floats(4, 3, 640, 640)},
        convolutions=True,
        routed=True,
        heavy=3,
    ),
    Row(
        "mask-rcnn-r50-fpn",
        "backbone, pyramid, proposals; heads of 1,000 and 100 regions; 800 by 1,216",
        MaskRCNN,
        {
            "pixel_values": floats(1, 3, 800, 1216),
            "regions": floats(1000, 256, 7, 7),
            "masked": floats(100, 256, 14, 14),
        },
        library="torchvision",
        convolutions=True,
        heavy=2,
    ),
    Row(
        "yolos-base",
        "whole, 0.13 B; 800 by 1,344, 4,300 tokens, batch 1",
        of_transformers("YolosForObjectDetection", "YolosConfig", image_size=[800, 1344]),
        {"pixel_values": floats(1, 3, 800, 1344)},
        heavy=2,
    ),
)
