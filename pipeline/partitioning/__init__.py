"""Cut a program into segments for engines and segments for PyTorch.

`flow` shows a program as operators and values, `units` says what no cut may part, `levels` which units share a segment,
`borders` and `settle` which units run in engines, and `assemble` makes the segments. Each is a pure function; the
partitioners in `pipeline.stages.partition` join them.
"""

from pipeline.partitioning.assemble import assemble

__all__ = ["assemble"]
