"""The small networks of ``attribute_pairs``: a function for each layer kind, which makes one layer and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pipeline.trt import CAPABILITIES, trt
from tests.runtime.reference_networks import Net

Make = Callable[[Net], Any]


def image(*shape: int) -> torch.Tensor:
    """A float32 tensor of this shape, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer_of(method: str, *shapes: tuple[int, ...], then: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
    """Makes a layer by its ``add_`` method from inputs of these shapes."""

    def make(net: Net) -> Any:
        sources = [net.input(image(*shape) + 0.1 * place) for place, shape in enumerate(shapes)]
        layer = getattr(net.net, f"add_{method}")(*sources, **arguments)
        for name, value in (then or {}).items():
            setattr(layer, name, value)
        return layer

    return make


def unary(operation: str, value: torch.Tensor) -> Make:
    return lambda net: net.net.add_unary(net.input(value), trt.UnaryOperation.__members__[operation])


def elementwise(operation: str, *values: torch.Tensor) -> Make:
    return lambda net: net.net.add_elementwise(
        *(net.input(value) for value in values), trt.ElementWiseOperation.__members__[operation]
    )


def convolution(method: str) -> Make:
    def make(net: Net) -> Any:
        kernel, bias = net.weight(image(4, 4, 3, 3)), net.weight(image(4))
        layer = getattr(net.net, f"add_{method}_nd")(net.input(image(2, 4, 10, 10)), 4, (3, 3), kernel, bias)
        layer.stride_nd = (2, 2)
        return layer

    return make


def dense_deconvolution(net: Net) -> Any:
    kernel, bias = net.weight(image(4, 4, 3, 3)), net.weight(image(4))
    return net.net.add_deconvolution_nd(net.input(image(2, 4, 10, 10)), 4, (3, 3), kernel, bias)


def padded_pooling(net: Net) -> Any:
    layer = net.net.add_pooling_nd(net.input(image(2, 3, 9, 9)), trt.PoolingType.AVERAGE, (3, 3))
    layer.stride_nd, layer.pre_padding, layer.post_padding = (2, 2), (1, 0), (0, 2)
    layer.average_count_excludes_padding = True
    return layer


def blended_pooling(net: Net) -> Any:
    layer = net.net.add_pooling_nd(net.input(image(2, 3, 8, 8)), trt.PoolingType.MAX_AVERAGE_BLEND, (2, 2))
    layer.blend_factor = 0.25
    return layer


def activation(kind: str, **settings: float) -> Make:
    return layer_of("activation", (4, 33), then=settings, type=trt.ActivationType.__members__[kind])


def cast(value: torch.Tensor, to: str) -> Make:
    return lambda net: net.net.add_cast(net.input(value), trt.DataType.__members__[to])


def concatenation(net: Net) -> Any:
    return net.net.add_concatenation([net.input(image(4, 4)), net.input(image(4, 4) + 1)])


def cumulative(net: Net) -> Any:
    axis = net.constant(torch.tensor(1, dtype=torch.int32))
    return net.net.add_cumulative(net.input(image(3, 7)), axis, trt.CumulativeOperation.SUM, False, False)


def einsum(net: Net) -> Any:
    return net.net.add_einsum([net.input(image(2, 4, 4)), net.input(image(2, 4, 4) + 1)], "bij,bjk->bik")


def fill(net: Net) -> Any:
    layer = net.net.add_fill((3, 4), trt.FillOperation.LINSPACE, trt.DataType.FLOAT)
    layer.set_input(1, net.constant(torch.tensor(0.5)))
    layer.set_input(2, net.constant(torch.tensor([1.0, 2.0])))
    return layer


def plain_fill(net: Net) -> Any:
    layer = net.net.add_fill((6,), trt.FillOperation.LINSPACE, trt.DataType.FLOAT)
    layer.alpha, layer.beta = 0.5, 2.0
    return layer


def gather(mode: str, indices: torch.Tensor, axis: int = 0) -> Make:
    def make(net: Net) -> Any:
        sources = net.input(image(4, 4, 4)), net.input(indices)
        layer = net.net.add_gather_v2(*sources, trt.GatherMode.__members__[mode])
        layer.axis = axis
        return layer

    return make


def grid_sample(net: Net) -> Any:
    return net.net.add_grid_sample(net.input(image(1, 2, 5, 5)), net.input(1.2 * image(1, 4, 4, 2).tanh()))


def lrn(net: Net) -> Any:
    return net.net.add_lrn(net.input(image(1, 9, 4, 4)), 3, 0.5, 0.75, 1.5)


def product(net: Net) -> Any:
    none = trt.MatrixOperation.NONE
    return net.net.add_matrix_multiply(net.input(image(2, 5, 5)), none, net.input(image(2, 5, 5) + 1), none)


def normalization(net: Net) -> Any:
    scale, bias = net.constant(torch.ones(1, 4, 1, 1)), net.constant(torch.zeros(1, 4, 1, 1))
    return net.net.add_normalization(net.input(image(2, 4, 3, 3)), scale, bias, 0b1100)


def grouped_normalization(net: Net) -> Any:
    scale, bias = net.constant(torch.ones(1, 4, 1, 1)), net.constant(torch.zeros(1, 4, 1, 1))
    layer = net.net.add_normalization_v2(net.input(image(2, 4, 3, 3)), scale, bias, 0b1100)
    layer.num_groups = 2
    return layer


def one_hot(net: Net) -> Any:
    values, depth = net.constant(torch.tensor([0.0, 1.0])), net.constant(torch.tensor(4, dtype=torch.int32))
    return net.net.add_one_hot(net.input(torch.tensor([[0, 3, 1, 2]] * 4, dtype=torch.int32)), values, depth, 2)


def padding(net: Net) -> Any:
    return net.net.add_padding_nd(net.input(image(1, 2, 4, 4)), (1, 0), (0, 1))


def reduce(operation: str) -> Make:
    return layer_of("reduce", (4, 4, 4), op=trt.ReduceOperation.__members__[operation], axes=0b010, keep_dims=True)


def resize(mode: str, **settings: Any) -> Make:
    def make(net: Net) -> Any:
        layer = net.net.add_resize(net.input(image(1, 2, 5, 5)))
        layer.resize_mode = trt.InterpolationMode.__members__[mode]
        for name, value in settings.items():
            setattr(layer, name, value)
        return layer

    return make


def reversed_sequence(net: Net) -> Any:
    layer = net.net.add_reverse_sequence(net.input(image(4, 4, 4)), net.input(torch.tensor([1, 3, 2, 4])))
    layer.batch_axis, layer.sequence_axis = 1, 0
    return layer


def rotary(net: Net) -> Any:
    angles = [net.input(image(2, 5, 4).cos()), net.input(image(2, 5, 4).sin())]
    return net.net.add_rotary_embedding(net.input(image(2, 3, 5, 8)), *angles, False, 0)


def scale(net: Net) -> Any:
    weights = [net.weight(value) for value in (image(4), image(4).abs() + 0.5)]
    no_power = trt.Weights(trt.float32)  # TensorRT gives that weight no name
    return net.net.add_scale_nd(net.input(image(2, 4, 4, 4)), trt.ScaleMode.CHANNEL, *weights, no_power, 1)


def scatter(mode: str, indices: torch.Tensor, updates: torch.Tensor) -> Make:
    return lambda net: net.net.add_scatter(
        net.input(image(4, 4)), net.input(indices), net.input(updates), trt.ScatterMode.__members__[mode]
    )


def shuffle(net: Net) -> Any:
    layer = net.net.add_shuffle(net.input(image(2, 3, 4)))
    layer.first_transpose, layer.reshape_dims, layer.second_transpose = (1, 0, 2), (0, -1, 2), (0, 2, 1)
    return layer


def slices(net: Net) -> Any:
    return net.net.add_slice(net.input(image(6, 7)), (1, 1), (3, 3), (2, 2))


def clamped_slice(net: Net) -> Any:
    layer = net.net.add_slice(net.input(image(4, 5)), (-2, -1), (9, 9), (1, 1))
    layer.mode = trt.SampleMode.CLAMP
    return layer


def topk(net: Net) -> Any:
    return net.net.add_topk(net.input(image(6, 6)), trt.TopKOperation.MAX, 3, 0b10)


def attention(dtype: torch.dtype, causal: bool) -> Make:
    def make(net: Net) -> Any:
        tensors = [net.input((image(2, 4, 16, 32) * 0.3 + 0.1 * i).to(dtype)) for i in range(3)]
        softmax = trt.AttentionNormalizationOp.SOFTMAX
        if CAPABILITIES.attention == "v2":
            layer = net.net.add_attention_v2(*tensors, softmax, trt.CausalMaskKind.NONE)
        else:
            layer = net.net.add_attention(*tensors, softmax, causal)
        layer.decomposable = True
        return layer

    return make


def looped(net: Net) -> Any:
    """Cumulative sums of rows, all of them."""
    loop, trips = net.net.add_loop(), net.constant(torch.tensor(4, dtype=torch.int32))
    loop.add_trip_limit(trips, trt.TripLimit.COUNT)
    row = loop.add_iterator(net.input(image(4, 4)), 0, False).get_output(0)
    state = loop.add_recurrence(net.constant(torch.zeros(4)))
    total = net.net.add_elementwise(state.get_output(0), row, trt.ElementWiseOperation.SUM).get_output(0)
    state.set_input(1, total)
    output = loop.add_loop_output(total, trt.LoopOutput.CONCATENATE, 0)
    output.set_input(1, trips)
    return output
