"""From a module or an ``ExportedProgram`` to a ``Program``: `export_fixes` is asked for the export of a module."""
