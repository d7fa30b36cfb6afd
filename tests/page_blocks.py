"""The blocks of code on pages, and how each is run as it stands there.

A page is a session: its blocks run in their order, in one folder, and Python blocks share their names. A comment before
a block says what differs, and is not shown:

    <!-- test with: --epochs 1 -->   these options are set in those of its commands that have them
    <!-- not run: why -->            its commands are checked, but not run
    <!-- output -->                  it is what was printed last, line for line but for numbers
    <!-- output where: condition --> and the condition, in the names of the Python blocks, holds
    <!-- file: name.py -->           it is written into this file, for a command to run
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jocor_fast.cli.program import build_parser, main

ROOT = Path(__file__).resolve().parents[1]
_COMMENT = r"(?:^<!-- (output|(?:output where|file|test with|not run): [^\n]*?) -->\n)?"
_BLOCK = re.compile(rf"{_COMMENT}^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = ("python", "sh", "text", "toml")
SHELL = ("cat", "cp", "head", "ls", "mkdir")  # may be on a page, and are left to the shell


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text, and the comment before it."""

    language: str
    text: str
    comment: str = ""

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of language sh."""
        lines = (shlex.split(line, comments=True) for line in self.text.replace("\\\n", " ").splitlines())
        return [shlex.join(words) for words in lines if words]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page; directives of the documentation's generator are none."""
    return [Block(language, text, comment) for comment, language, text in _BLOCK.findall(page) if language[:1] != "{"]


@dataclass
class Session:
    """Runs the blocks of a page in the current folder.

    Attributes:
        names: of the Python blocks.
        printed: by the last block that was run.
    """

    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""

    def run(self, block: Block) -> None:
        """Run a block; an AssertionError where it fails, or prints what the page does not say."""
        if block.comment.startswith("file: "):
            Path(block.comment.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self.printed = _printed(lambda: exec(compile(block.text, "a page", "exec"), self.names))
        elif block.language == "toml":
            Path("settings.toml").write_text(block.text, encoding="utf-8")
        elif block.language == "sh" and block.comment.startswith("not run: "):
            for command in block.commands:
                check(command)
        elif block.language == "sh":
            more = shlex.split(block.comment.removeprefix("test with: "))
            self.printed = "".join(_printed(lambda command=command: _run(command, more)) for command in block.commands)
        elif block.comment.startswith("output"):
            assert _shapes(block.text) == _shapes(self.printed), self.printed
            condition = block.comment.removeprefix("output").removeprefix(" where: ")
            assert not condition or eval(condition, self.names), condition


def check(command: str) -> None:
    """Raise an AssertionError where a command that is not run names what does not exist."""
    words = shlex.split(command)
    while re.fullmatch(r"\w+=\S*", words[0]):
        words = words[1:]
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        known = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", known, re.MULTILINE) for target in targets), command
    elif words[0] == "jocor-fast":
        _, unknown = build_parser().parse_known_args(words[1:])
        assert unknown == [], command
    elif words[0] == "python":
        assert words[1] == "-m" or (ROOT / words[1]).exists(), command
    else:
        assert words[0] in ("pip", "torchrun", "eval", ".ci/run", *SHELL), command


def _run(command: str, more: list[str]) -> None:
    """Run a command, with `more` where it has such options."""
    program, *arguments = shlex.split(command)
    if program in SHELL:
        print(subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout)
        return
    if program == "torchrun":
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]  # at a port that is free
        print(subprocess.run(launch, check=True, stdout=subprocess.PIPE, text=True).stdout)
        return
    assert program == "jocor-fast", f"{command}: say that it is not run, and why"
    if more and build_parser().parse_known_args(_with(arguments, more))[1]:
        more = []
    try:
        code = main(_with(arguments, more))
    except SystemExit as end:  # of --help
        code = int(end.code or 0)
    assert code == 0, command


def _with(arguments: list[str], more: list[str]) -> list[str]:
    """Return arguments with further options, which take the place of those that are there."""
    kept = list(arguments)
    for option, value in zip(more, [*more, "--"][1:], strict=True):
        if option in kept and option.startswith("--"):
            place = kept.index(option)
            del kept[place : place + (1 if value.startswith("--") else 2)]
    return [*kept, *more]


def _printed(call: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        call()
    return output.getvalue()


def _shapes(text: str) -> list[str]:
    """Return the lines of a text without their numbers and spacing, and without empty lines."""
    lines = re.sub(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "#", text).splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]
