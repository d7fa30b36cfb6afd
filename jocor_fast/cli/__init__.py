"""The command `jocor-fast`: one module a command, and what they share."""

from jocor_fast.cli.program import build_parser, main

__all__ = ["build_parser", "main"]
