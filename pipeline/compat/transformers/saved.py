"""Save a compiled language model: its programs, its configuration and the name of its class."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import transformers

from pipeline.artifact.load import FOLDER
from pipeline.artifact.save import save
from pipeline.compat.transformers.caches import Pretrained
from pipeline.compiled import StrPath
from pipeline.errors import ArtifactError
from pipeline.records.wording import path_of

LIMITS: Final = ("max_cache_len", "max_batch", "max_prompt_len", "max_draft_len")


def save_model(model: Pretrained, path: StrPath, weights: StrPath) -> None:
    """Save a model's programs: the decoder with what restores the model in ``path``, others in files beside it.

    Raises:
        ArtifactError: the model has parts that are code of its own, or its class is not one of transformers.
        OSError: a file cannot be written.
    """
    kind, place = type(model).__bases__[1], path_of(path, "save")
    if getattr(transformers, kind.__name__, None) is not kind:
        why = f"{kind.__name__} is not a class of transformers {transformers.__version__}, and files contain no code"
        raise ArtifactError(why, _BY_PART)
    if model.__dict__["_sight"] is not None or model.__dict__["_embedded"] is not None:
        why = "the model's own code runs in PyTorch before its engines, with weights, and files contain neither"
        raise ArtifactError(f"{kind.__name__} takes images or sound: {why}", _BY_CACHE)
    others = {name: f"{place.stem}.{name}{place.suffix}" for name in model.compiled if name != "decoder"}
    for name, file in others.items():
        save(model.compiled[name], place.with_name(file))
    record = {
        "library": "transformers",
        "class": kind.__name__,
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "generation_config": json.loads(model.generation_config.to_json_string(use_diff=False)),
        "dtype": str(model.dtype).removeprefix("torch."),
        "limits": [getattr(model.limits, name) for name in LIMITS],
        "others": others,
    }
    save(model.compiled["decoder"], place, weights, json.dumps(record))


_BY_CACHE: Final = (
    "compile it again where it runs: cache_built_engines=True and reuse_cached_engines=True build its engines only once"
)
_BY_PART: Final = "save each program, model.compiled[name].save(path), and compile the model anew around them"


def save_folder(model: Pretrained, folder: StrPath) -> None:
    """Save a model to a folder, with its configuration as transformers writes it; `pipeline.load` takes the folder."""
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - a path of any kind
    save_model(model, Path(folder) / FOLDER, "inside")
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
