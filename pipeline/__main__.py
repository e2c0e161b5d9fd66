"""Run the command line: ``python -m pipeline``."""

import sys

from pipeline.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
