"""`python -m jocor_fast` is `jocor-fast`."""

import sys

from jocor_fast.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
