"""The section of the report of benchmarks that says what engines of quantized models hold and fuse."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.markdown import failure, filled, table, where
from benchmarks.quantized_models import PLAIN

TEXT: Final = """`python -m benchmarks.quantized`: ViT-B, BERT-base, a decoder like Llama for 128 tokens and for one
(*step*), random weights, float16. *Fused* are weights of which a product reads the codes, and pairs of activations that
a product takes in, as the engine's plan shows; weights of products of one tensor may count as one. *Engine* and *file*
are their sizes relative to the model's weights: codes in their bits, scales of rows in float32 and of blocks in
float16, and in float16 what is not quantized. *Error* is that of a call beside eager's numbers: those of the library's
quantized model, or of the model in floats where `pipeline.quantize` quantizes it."""
TIMED: Final = """*Call* is a call's time on the GPU, by a replayed graph; *float16* is the time of the model that is
not quantized, relative to it: above 1, fewer bits are faster."""

HEAD: Final = ("model", "quantized by", "built for", "error", "weights fused", "pairs fused", "engine", "file")
TIMES: Final = ("call", "float16", "eager's call")


def quantized(data: dict[str, Any]) -> str:
    """What became of each model; on a GPU with the milliseconds of a call."""
    rows = data["quantized"]
    is_timed = any("gpu_ms" in row for row in rows)
    plain = {row["model"]: row["gpu_ms"] for row in rows if row["way"] == PLAIN and "gpu_ms" in row}
    head = [*HEAD, *TIMES] if is_timed else list(HEAD)
    notes = sorted({f"{row['way']}, {row['capability']}: {why}" for row in rows for why in row.get("not_fused", ())})
    library = next(f"{name} {found}" for name, found in data["versions"].items() if name.startswith("tensorrt"))
    return "\n".join(
        [
            f"## Quantized models with {library}{f' on {gpu}' if (gpu := data['machine']['gpu']) else ''}\n",
            filled(where(data)),
            filled(f"{TEXT} {TIMED}" if is_timed else TEXT),
            *table(head, [_row(row, plain, is_timed) for row in rows]),
            "",
            *(["Not fused:\n", *(f"- {note}" for note in notes), ""] if notes else []),
        ]
    )


def _row(row: dict[str, Any], plain: dict[str, float], is_timed: bool) -> list[str]:
    named = [row["model"], row["way"], row["capability"]]
    if "failed" in row:
        return [*named, failure(row), *[""] * (len(HEAD) - 4 + len(TIMES) * is_timed)]
    sizes = [f"{row[key] / row['expected_bytes']:.2f}" for key in ("engine_bytes", "file_bytes")]
    error = f"{row['relative_error']:.0e}" if "relative_error" in row else ""
    fused = [_count(row["fused"], row["weights"]), _count(row["pairs_fused"], row["pairs"])]
    return [*named, error, *fused, *sizes, *(_times(row, plain) if is_timed else [])]


def _times(row: dict[str, Any], plain: dict[str, float]) -> list[str]:
    call, beside = row.get("gpu_ms"), plain.get(row["model"])
    eager = f"{row['eager_ms']:.3f} ms" if "eager_ms" in row else ""
    return [f"{call:.3f} ms" if call else "", f"{beside / call:.2f}" if call and beside else "", eager]


def _count(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else ""
