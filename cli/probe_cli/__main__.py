"""`python -m probe_cli`: the same as the command `probe`."""

import sys

from probe_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
