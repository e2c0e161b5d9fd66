"""The stages, one file each."""

from pipeline.stages.build import Build, build
from pipeline.stages.convert import convert
from pipeline.stages.decompose import Decompose
from pipeline.stages.improve import Improve
from pipeline.stages.partition import BySubmodule, InPieces, Partition, Partitioner, by_submodule, in_pieces, partition
from pipeline.stages.refit_map import refit_map
from pipeline.stages.unbuilt import unbuilt
from pipeline.stages.validate import Validate
from pipeline.stages.verify import Verify, verify

__all__ = [
    "Build",
    "BySubmodule",
    "Decompose",
    "Improve",
    "InPieces",
    "Partition",
    "Partitioner",
    "Validate",
    "Verify",
    "build",
    "by_submodule",
    "convert",
    "in_pieces",
    "partition",
    "refit_map",
    "unbuilt",
    "verify",
]
