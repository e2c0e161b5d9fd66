"""Restore a saved language model from its programs and configuration, without its checkpoint or code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from pipeline.compat.transformers.compiled_model import CompiledGeneration, create_weightless_copy
from pipeline.compat.transformers.sizes import Limits
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError


def restored(decoder: Compiled, record: dict[str, Any], load_program: Callable[[str], Compiled]) -> CompiledGeneration:
    """Restore a saved model from its decoder program and the ``record`` that `CompiledGeneration.save` wrote;
    ``load_program`` loads a program from another file in the same folder."""
    name = str(record["class"])
    kind: Any = getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.GenerationMixin):
        why = f"transformers {transformers.__version__} has no language model class {name}"
        raise ArtifactError(why, "install the version of transformers that the model was compiled with")
    model_class: Any = kind
    with torch.device("meta"):
        model = model_class(model_class.config_class.from_dict(record["config"]))
    model.generation_config = GenerationConfig.from_dict(record["generation_config"])
    programs = {"decoder": decoder, **{part: load_program(file) for part, file in record["others"].items()}}
    runners = {part: program.module() for part, program in programs.items()}
    made: CompiledGeneration = create_weightless_copy(model, None, None, {}, runners)
    made.__dict__["_float"] = getattr(torch, record["dtype"])
    return made.set_programs(programs, runners, Limits(*record["limits"]))
