"""What starts without torch: help, versions, completion, refusals of wrong options, and the package itself."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import jocor_fast as jf
from children import python
from jocor_fast.cli.program import COMMANDS, SHELLS

# Importing one of them takes longer than everything else here, or is not needed before there is something to compute.
SLOW = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "PIL", "rich.progress", "xml")

WITHOUT = f"""
import sys
from importlib.machinery import ModuleSpec


class Slow:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in {SLOW} else None

    def create_module(self, spec):
        raise ImportError(spec.name + " is imported")

    def exec_module(self, module): ...

sys.meta_path.insert(0, Slow())
"""

COMMANDS_IN_TURN = f"""{WITHOUT}
import contextlib, io, json

from jocor_fast.cli.program import main

ended = []
for line in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(line)
        except SystemExit as left:
            code = left.code or 0
    ended.append((code, len(out.getvalue()), error.getvalue()))
print(json.dumps(ended))
"""

PRINTED = (
    ["--version"],
    ["--help"],
    *([command, "--help"] for command in COMMANDS),
    *(["--print-completion", shell] for shell in SHELLS),
)
REFUSED = {
    "train": (
        ["--nothing"],
        ["--epochs", "many"],
        ["--epochs", "0"],
        ["--noise-rate", "1"],
        ["--noise", "asymmetric"],
        ["--method", "nothing"],
        ["--method", "standard", "--label-smoothing", "2"],
        ["--dataset", "nothing"],
        ["--dataset", "digits", "--strict"],
        ["--device", "tpu"],
        ["--config", "absent.toml"],
    ),
    "compare": (["--methods", "nothing"], ["--seeds", "0"], ["--seed", "1"], ["--noise-rate", "1"]),
    "reproduce": (
        [],
        ["nothing"],
        ["mnist", "--seeds", "0"],
        ["mnist", "--methods", "nothing"],
        ["mnist", "--epochs=x"],
    ),
    "search-lambda": (["--grid", "2"], ["--co-lambda", "0.5"], ["--ramp-epochs", "-1"]),
    "estimate-noise": (["--val-labels", "small-loss"], ["--lr", "nothing"]),
    "features": ([], ["--dataset", "digits"], ["--dataset", "digits", "--pretrained", "x", "--output", "y"]),
    "audit": ([], ["--images", "-1"], ["--export", "nothing", "RUN"], ["--features", "x"], ["--names", "x", "RUN"]),
    "predict": ([], ["RUN"], ["RUN", "x.png", "--network", "3"], ["RUN", "x.png", "--device", "tpu"]),
    "prepare": ([], ["--dataset", "mnist", "--output", "x"], ["--dataset", "folder:x", "--output", "y", "--size", "0"]),
    "plot": ([], ["--nothing"]),
    "info": (["--nothing"], ["nothing"]),
}
OTHERS = ([], ["nothing"], ["--nothing"], ["--print-completion", "nothing"])


def without_slow(code: str, *arguments: str, cwd: Path) -> Any:
    """What a program prints as JSON that can import none of what is slow."""
    child = python("-c", code, *arguments, cwd=cwd)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_help_version_and_completion_are_printed_without_torch(tmp_path: Path) -> None:
    ended = without_slow(COMMANDS_IN_TURN, json.dumps(PRINTED), cwd=tmp_path)
    for line, (code, printed, error) in zip(PRINTED, ended, strict=True):
        assert (code, error) == (0, ""), line
        assert printed > 10, line


def test_wrong_options_are_refused_without_torch(tmp_path: Path) -> None:
    assert REFUSED.keys() == COMMANDS.keys()
    lines = [*OTHERS, *([command, *options] for command, refused in REFUSED.items() for options in refused)]
    ended = without_slow(COMMANDS_IN_TURN, json.dumps(lines), cwd=tmp_path)
    for line, (code, printed, error) in zip(lines, ended, strict=True):
        assert (code, printed) == (2, 0), (line, error)
        assert error.startswith("jocor-fast: error: "), line
        assert "is imported" not in error, line


def test_a_command_that_computes_says_in_one_sentence_that_torch_cannot_be_imported(tmp_path: Path) -> None:
    ((code, printed, error),) = without_slow(COMMANDS_IN_TURN, json.dumps([["info"]]), cwd=tmp_path)
    assert (code, printed, error) == (1, 0, "jocor-fast: error: torch is imported\n")


def test_noise_and_schedules_need_no_torch(tmp_path: Path) -> None:
    code = f"""{WITHOUT.replace("'numpy', ", "")}
import json
import jocor_fast as jf

matrix = jf.noise.symmetric(3, 0.5)
noisy = jf.noise.corrupt([0, 1, 2, 0, 1, 2], matrix, seed=0)
print(json.dumps([noisy.tolist(), jf.schedules.keep_rate(5, forget_rate=0.5), jf.__version__, sorted(dir(jf))]))
"""
    noisy, rate, version, names = without_slow(code, cwd=tmp_path)
    assert (noisy, rate, version) == ([1, 1, 2, 1, 1, 2], 0.75, jf.__version__)
    assert set(jf.__all__) < set(names)


def test_every_public_name_is_found_where_type_checkers_look_for_it() -> None:
    """The imports under TYPE_CHECKING are those that are made when a name is first used."""
    tree = ast.parse(Path(jf.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            module = f"jocor_fast.{name.name}" if node.module == "jocor_fast" else node.module
            found[name.name] = module
    assert found == jf._MODULES
    assert sorted(found) == sorted(jf.__all__)
    for name in jf.__all__:
        value = getattr(jf, name)
        assert getattr(value, "__module__", value.__name__) == found[name] or value is sys.modules[found[name]]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'jocor_fast' has no attribute 'nothing'"):
        jf.nothing  # noqa: B018
