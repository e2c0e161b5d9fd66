"""Connect the methods of `Compiled` and `Profile` to the packages that implement them, except for the methods in
`pipeline.artifact.new_module`. `Compiled` imports this module at the first call of such a method."""

from __future__ import annotations

from pipeline.artifact.epcontext import save_in_format
from pipeline.artifact.refit import with_lora
from pipeline.compiled import Compiled
from pipeline.profiling.measure import measure_profile
from pipeline.profiling.trace import write_trace as write_trace
from pipeline.records.profile import Profile
from pipeline.viewing.page import write_report

Compiled._profiled = measure_profile
Compiled._write = save_in_format
Compiled._write_page = write_report
Compiled._adapted = with_lora
Profile._write_trace = write_trace
