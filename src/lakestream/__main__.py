"""Entry point of `python -m lakestream`, the same as the command `lakestream`."""

import sys

from lakestream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
