"""Cut a program into segments for engines and segments for PyTorch.

`flow` represents a program as operators and values, `units` groups operators that no cut may separate, `levels` decides
which units share a segment, `boundary_ops` and `fixpoint` which units run in engines, and `assemble` makes the
segments. Each is a pure function; the partitioners in `pipeline.stages.partition` combine them.
"""

from pipeline.partitioning.assemble import assemble

__all__ = ["assemble"]
