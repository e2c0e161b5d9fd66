"""Capture a module or ``ExportedProgram`` as a ``Program``; the package `export_fixes` exports modules."""
