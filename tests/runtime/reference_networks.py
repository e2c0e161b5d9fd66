"""Little networks for the tests of the reference: built with the bindings, described, run."""

from collections.abc import Callable
from typing import Any

import torch

from pipeline.network.description import Network, Weight, describe
from pipeline.network.replay import replay
from pipeline.network.validity import first_network_error
from pipeline.runtime.reference import run
from pipeline.trt import Log, as_weights, dtype_name, new_network, to_torch, to_trt, trt

LOG = Log()
BUILDER = trt.Builder(LOG)
DYNAMIC = -1


class Net:
    """A network under construction, and the tensors its weights and inputs have."""

    def __init__(self) -> None:
        self.net = new_network(BUILDER)
        self.weights: dict[str, torch.Tensor] = {}
        self.inputs: dict[str, torch.Tensor] = {}
        self.mark = LOG.position()

    def input(self, value: torch.Tensor, dynamic: tuple[int, ...] = ()) -> Any:
        """An input that will have this value; the axes in `dynamic` are left open."""
        name = f"in{len(self.inputs)}"
        self.inputs[name] = value
        shape = [DYNAMIC if axis in dynamic else size for axis, size in enumerate(value.shape)]
        return self.net.add_input(name, to_trt(value.dtype), shape)

    def weight(self, value: torch.Tensor) -> Any:
        value = value.contiguous()
        self.weights[f"w{len(self.weights)}"] = value
        return as_weights(value)

    def constant(self, value: torch.Tensor) -> Any:
        return self.net.add_constant(tuple(value.shape), self.weight(value)).get_output(0)

    def ints(self, *values: int, dtype: torch.dtype = torch.int64) -> Any:
        return self.constant(torch.tensor(values, dtype=dtype))

    def output(self, *tensors: Any) -> "Net":
        for index, tensor in enumerate(tensors):
            assert tuple(tensor.shape) is not None, LOG.errors_since(self.mark)
            tensor.name = f"out{index}"
            self.net.mark_output(tensor)
        return self

    def weight_name(self, pointer: int) -> Weight | None:
        for name, value in self.weights.items():
            if value.data_ptr() == pointer:
                return Weight(name, dtype_name(to_trt(value.dtype)), tuple(value.shape))
        return None

    def described(self) -> Network:
        network = describe(self.net, name="test", weight_name=self.weight_name)
        assert LOG.errors_since(self.mark) == (), "describing a network must ask TensorRT nothing it refuses"
        assert not first_network_error(network), "what TensorRT takes is a network"
        assert str(self.replayed(network)) == str(network), "a description must leave nothing out"
        self.mark = LOG.position()
        return network

    def replayed(self, network: Network) -> Network:
        """The description of the network that is made from this description."""
        again = replay(network, lambda name: as_weights(self.weights[name]), BUILDER, LOG)
        return describe(again, name="test", weight_name=self.weight_name)

    def run(self) -> list[torch.Tensor]:
        """The outputs, in order; the reference itself compares their shapes with those that TensorRT infers."""
        network = self.described()
        results = run(network, self.weights, self.inputs)
        for index, row in enumerate(network.outputs):
            assert results[row.name].dtype == to_torch(self.net.get_output(index).dtype)
        return [results[tensor.name] for tensor in network.outputs]


def computed(add: Callable[..., Any], *values: torch.Tensor) -> torch.Tensor:
    """The first output of the layer that `add(net, *inputs)` makes, run by the reference."""
    net = Net()
    layer = add(net, *(net.input(value) for value in values))
    (result,) = net.output(layer.get_output(0)).run()
    return result
