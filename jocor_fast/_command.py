"""How the command ends where the package cannot be imported: in one sentence, as it ends of any other error.

The package is imported before the command's own code, so that this cannot be caught there. Nothing here needs torch or
the compiled part.
"""

from __future__ import annotations

import sys
from pathlib import PurePath


def end_command(error: ImportError) -> None:
    """SystemExit with a sentence and exit code 1 if this process is `jocor-fast` or `python -m jocor_fast`."""
    started = sys.argv[0] if sys.argv else ""
    # While Python looks for the module of -m, that flag itself stands in the place of the program's name.
    module = started == "-m" and {"jocor_fast", "-mjocor_fast"} & set(sys.orig_argv)
    if module or PurePath(started).stem == "jocor-fast":
        raise SystemExit(f"jocor-fast: error: {' '.join(str(error).split())}")
