"""The stages of the pipeline, one file each."""

from pipeline.stages.avoid_faults import avoid_faults
from pipeline.stages.build import Build, build
from pipeline.stages.choose import Choose
from pipeline.stages.convert import convert
from pipeline.stages.decompose import Decompose
from pipeline.stages.improve import Improve
from pipeline.stages.load import Load
from pipeline.stages.outside import EnginePerProfile, SharedWeights, engine_per_profile, shared_weights
from pipeline.stages.partition import BySubmodule, InPieces, Partition, Partitioner, by_submodule, in_pieces, partition
from pipeline.stages.refit_map import refit_map
from pipeline.stages.unbuilt import unbuilt
from pipeline.stages.validate import Validate
from pipeline.stages.verify import Verify, verify

__all__ = [
    "Build",
    "BySubmodule",
    "Choose",
    "Decompose",
    "EnginePerProfile",
    "Improve",
    "InPieces",
    "Load",
    "Partition",
    "Partitioner",
    "SharedWeights",
    "Validate",
    "Verify",
    "avoid_faults",
    "build",
    "by_submodule",
    "convert",
    "engine_per_profile",
    "in_pieces",
    "partition",
    "refit_map",
    "shared_weights",
    "unbuilt",
    "verify",
]
