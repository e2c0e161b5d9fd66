"""Building blocks for normalization, softmax and distances."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, op_block, require


@block
def batch_norm(
    input: Argument,
    weight: Argument,
    bias: Argument,
    running_mean: Argument,
    running_var: Argument,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
    return_mean_rstd: bool = False,
) -> Expression:
    """Add aten.batch_norm.default with running statistics; with ``return_mean_rstd``, return [result, None, None]."""
    why = "an engine runs inference only, and does not update running statistics"
    require(not training, "impl.normalization.batch_norm", why, "pass training=False")
    known = (weight, bias, running_mean, running_var)
    made = call(aten.batch_norm.default, input, *known, training, momentum, eps, cudnn_enabled)
    return [made, None, None] if return_mean_rstd else made


layer_norm = op_block(aten.layer_norm.default, "input", "normalized_shape", "weight", "bias", "eps", cudnn_enable=False)
native_layer_norm = block(
    lambda input, normalized_shape, weight, bias, eps: [
        call(aten.layer_norm.default, input, normalized_shape, weight, bias, eps),
        None,
        None,
    ],
    "aten.layer_norm.default -> [tensor, None, None]",
)
group_norm = op_block(aten.group_norm.default, "input", "num_groups", "weight", "bias", "eps", cudnn_enabled=False)
native_group_norm = block(
    lambda input, weight, bias, N, C, HxW, group, eps: [
        call(aten.group_norm.default, input, group, weight, bias, eps),
        None,
        None,
    ],
    "aten.group_norm.default -> [tensor, None, None]; the sizes are those of ``input``",
)
softmax = block(
    lambda input, dim, half_to_float=False: call(
        aten.softmax.int, input, dim, torch.float32 if half_to_float else None
    ),
    "aten.softmax.int; ``half_to_float`` returns float32",
)
pdist = block(lambda input, p=2: call(aten._pdist_forward.default, input, float(p)), "aten._pdist_forward.default")
cdist_forward = block(
    lambda x1, x2, p, compute_mode=None: call(aten._cdist_forward.default, x1, x2, float(p), compute_mode),
    "aten._cdist_forward.default",
)
