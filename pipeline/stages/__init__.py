"""The stages of the compilation pipeline, one file each."""

from pipeline.stages.avoid_faults import avoid_faults as avoid_faults
from pipeline.stages.build import Build as Build
from pipeline.stages.build import build as build
from pipeline.stages.choose import Choose as Choose
from pipeline.stages.convert import convert as convert
from pipeline.stages.decompose import Decompose as Decompose
from pipeline.stages.improve import Improve as Improve
from pipeline.stages.load import Load as Load
from pipeline.stages.outside import EnginePerProfile as EnginePerProfile
from pipeline.stages.outside import SharedWeights as SharedWeights
from pipeline.stages.outside import engine_per_profile as engine_per_profile
from pipeline.stages.outside import shared_weights as shared_weights
from pipeline.stages.partition import BySubmodule as BySubmodule
from pipeline.stages.partition import InPieces as InPieces
from pipeline.stages.partition import Partition as Partition
from pipeline.stages.partition import Partitioner as Partitioner
from pipeline.stages.partition import by_submodule as by_submodule
from pipeline.stages.partition import in_pieces as in_pieces
from pipeline.stages.partition import partition as partition
from pipeline.stages.refit_map import refit_map as refit_map
from pipeline.stages.unbuilt import unbuilt as unbuilt
from pipeline.stages.validate import Validate as Validate
from pipeline.stages.verify import Verify as Verify
from pipeline.stages.verify import verify as verify
