"""The directive `command-options`: what a command of `jocor-fast` takes, as its own parser declares it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from jocor_fast.cli.program import PROGRAM, build_parser


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    (commands,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return commands.choices[command]


def description_lines(text: str) -> Iterator[str]:
    """Yield a command's description as reStructuredText: its indented lines are code, the others paragraphs."""
    in_code = False
    for line in text.splitlines():
        code = line.startswith("    ")
        if code and not in_code:
            yield from ("", ".. code-block:: text", "")
        elif in_code and not code:
            yield ""
        in_code = code
        yield line if code else escaped(line)
    yield ""


def escaped(text: str) -> str:
    """Escape what reStructuredText would read as markup, and set options as code."""
    text = re.sub(r"([\\*|_`])", r"\\\1", text)
    return re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"``\1``", text)


def option_lines(group: argparse._ArgumentGroup) -> Iterator[str]:
    """Yield the options of a group as reStructuredText."""
    shown = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
    if not shown:
        return
    yield from (f".. rubric:: {(group.title or '').capitalize()}", "")
    for action in shown:
        value = f" {action.metavar}" if isinstance(action.metavar, str) and action.option_strings else ""
        names = ", ".join(f"{name}{value}" for name in action.option_strings) or str(action.metavar)
        text = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
        yield from (f".. option:: {names}", "", f"   {escaped(text)}", "")


class CommandOptions(SphinxDirective):
    """The usage, description and options of the command that is its argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = self.arguments[0]
        parser = parser_of(command)
        usage = " ".join((parser.usage or "").split())
        lines = [f".. program:: {PROGRAM} {command}", "", ".. code-block:: text", "", f"   {usage}", ""]
        lines += description_lines(parser.description or "")
        for group in parser._action_groups:
            lines += option_lines(group)
        parent = nodes.container()
        self.state.nested_parse(StringList(lines, f"{PROGRAM} {command} --help"), self.content_offset, parent)
        return parent.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-options", CommandOptions)
    return {"parallel_read_safe": True}
