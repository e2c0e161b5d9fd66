"""Cut a program into segments that engines run and segments that PyTorch runs.

`flow` represents a program as operators and values. `units` groups operators that must stay in one segment. `levels`
decides which units share a segment. `boundary_ops` and `fixpoint` decide which units run in engines. `assemble` builds
the segments. All of these are pure functions; the partitioners in `pipeline.stages.partition` combine them.
"""

from pipeline.partitioning.assemble import assemble

__all__ = ["assemble"]
