"""Capture a module or ``ExportedProgram`` as a ``Program``; `export_fixes` exports modules."""
