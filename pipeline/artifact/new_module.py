"""Connect `Compiled` to the module that runs it. `Compiled` imports this module at the first call of such a method.

A process that only loads and runs a saved program must not import the stages, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pipeline.artifact.program_op import OperatorCall
from pipeline.compiled import Compiled, CompiledModule, Executor
from pipeline.runtime.module import ProgramModule
from pipeline.runtime.module_replacement import in_place_of
from pipeline.settings import RUNTIME


def new_module(compiled: Compiled, executor: Executor | None, runtime_settings: Mapping[str, object]) -> CompiledModule:
    """Return a new module that runs ``compiled`` on an executor, and that torch.compile and torch.export can trace."""
    if executor not in (known := (None, *get_args(Executor))):
        raise ValueError(f"executor must be one of {', '.join(map(repr, known))}, got {executor!r}")
    if late := [name for name in runtime_settings if name in compiled.settings.names() and name not in RUNTIME]:
        raise TypeError(f"{', '.join(late)} can only be set when compiling; a module accepts {', '.join(RUNTIME)}")
    made = ProgramModule(compiled, executor, compiled.settings.evolve(**runtime_settings))
    made.entry = OperatorCall(made, compiled)
    return made


Compiled._new_module = new_module
Compiled._module_like = lambda _, model, module: in_place_of(model, module)
