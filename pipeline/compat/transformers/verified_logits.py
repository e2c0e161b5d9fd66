"""Verify a compiled language model: compare its logits with the logits of the original model in a wider dtype."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch
from transformers import GenerationMixin

from pipeline.compat.transformers.caches import Pretrained
from pipeline.compat.transformers.programs import audio_input_sizes
from pipeline.compat.transformers.sizes import Example, Sizes
from pipeline.errors import AgreementError, AgreementWarning, warn
from pipeline.frozen import FrozenDict
from pipeline.records.agreement import Agreement, OutputAgreement, versions
from pipeline.verification.bounds import Bound, matmul_precision, measure_errors
from pipeline.verification.eager import use_tf32
from pipeline.verification.measure import gpu_name, runs_in_tf32

OnWrong: TypeAlias = Literal["raise", "warn"]
"""What happens if logits are wrong: ``"raise"`` raises an `AgreementError`, ``"warn"`` only warns."""
Inputs: TypeAlias = Mapping[str, torch.Tensor]

PROMPT: Final = 32
"""The maximum number of tokens in a random prompt."""
STEPS: Final = 8
"""The maximum number of tokens that are generated after the prompt."""
HINT: Final = "pipeline.bisect finds the operators, torch_executed_ops runs them in PyTorch; verify='warn' only warns"


def verify_logits(model: Pretrained, compiled: Pretrained, sizes: Sizes, example: Example, on_failure: OnWrong) -> None:
    """Measure the errors of a compiled model's logits, for a prompt's last token and for generated tokens, and set its
    ``agreement``. The compiled model generates the tokens; the original model runs on the same tokens, in its own dtype
    and in a wider one. Raise an `AgreementError`, or warn, if an error exceeds the bound of `pipeline.verify`."""
    inputs = _verification_prompt(model, sizes, example)
    prompt = inputs.get("input_ids", inputs.get("inputs_embeds"))
    length = 1 if prompt is None else prompt.shape[1]  # a decoder may start without a prompt
    steps = max(1, min(STEPS, sizes.cache - length))
    runner = compiled.runners["decoder"]
    executor = runner.executor
    tf32 = runs_in_tf32(executor)
    tokens, ours = _generate_logits(compiled, inputs, steps)
    with use_tf32(tf32):
        _, eager = _generate_logits(model, inputs, steps, tokens)
    wider = torch.float32 if model.dtype.itemsize < 4 else torch.float64
    with use_tf32(False):
        exact = _generate_logits(copy.deepcopy(model).to(wider), inputs, steps, tokens)[1]
    row = OutputAgreement("logits", f"{length} tokens and {steps} more", exact=str(wider)[len("torch.") :])
    found = measure_errors(row, Bound(model.dtype, matmul_precision(executor, tf32)), ours, eager, exact)
    compiled.agreement = agreement = Agreement((found,), executor, gpu_name(executor), FrozenDict(), versions(), tf32)
    if not agreement.holds:
        error = AgreementError(agreement, HINT)
        if on_failure == "raise":
            raise error
        warn(str(error), AgreementWarning)


def _verification_prompt(model: Pretrained, sizes: Sizes, example: Example) -> dict[str, torch.Tensor]:
    """Return a prompt for the comparison: the example, random tokens of the vocabulary, or noise as audio."""
    if isinstance(example, Mapping):
        return dict(example)
    if isinstance(example, Sequence):
        return dict(example[0])
    name, generator = model.main_input_name, torch.Generator().manual_seed(0)
    if isinstance(example, torch.Tensor):
        return {name: example[:1]}
    if name == "input_ids":
        most = sizes.encoded if model.config.is_encoder_decoder else min(sizes.prompt, sizes.cache - 1)
        length, words = max(1, min(PROMPT, most)), model.get_input_embeddings().num_embeddings
        return {name: torch.randint(words, (1, length), generator=generator).to(model.device)}
    sound = torch.randn(1, *audio_input_sizes(model), generator=generator)
    return {name: sound.to(model.device, model.dtype)}


def _generate_logits(
    model: Pretrained, inputs: Inputs, step_count: int, forced_tokens: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generate tokens; return the prompt with them [rows, length], and the logits of each decoder step [steps, rows,
    vocabulary]. Tokens in ``forced_tokens`` replace those that the model would generate."""
    config = copy.deepcopy(model.generation_config)
    config.update(do_sample=False, num_beams=1, num_return_sequences=1, max_new_tokens=step_count, max_length=None)
    config.update(output_logits=True, return_dict_in_generate=True)
    config.update(cache_implementation=None, eos_token_id=None, use_cache=True)
    inputs_on_device: dict[str, Any] = {
        name: x.to(model.device, model.dtype if x.is_floating_point() else None) for name, x in inputs.items()
    }
    rows = [] if forced_tokens is None else forced_tokens.tolist()
    allowed_tokens = (lambda row, tokens: [rows[row][len(tokens)]]) if rows else None
    with torch.no_grad():
        output: Any = GenerationMixin.generate(
            model, **inputs_on_device, generation_config=config, prefix_allowed_tokens_fn=allowed_tokens
        )
    return output.sequences, torch.stack(output.logits)
