"""The six stages, a file each, in the order in which they run."""

from pipeline.stages.build import build
from pipeline.stages.convert import convert
from pipeline.stages.decompose import Decompose
from pipeline.stages.partition import partition
from pipeline.stages.refit_map import refit_map
from pipeline.stages.validate import Validate

__all__ = ["Decompose", "Validate", "build", "convert", "partition", "refit_map"]
