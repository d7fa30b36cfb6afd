"""`jocor-fast --print-completion bash`, asked as bash asks it when the user presses Tab."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from jocor_fast.cli.program import COMMANDS, SHELLS, main
from jocor_fast.config.options import OPTIONS
from jocor_fast.data.catalogue import DATASETS


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["--print-completion", shell])
    assert left.value.code in (0, None)
    return capsys.readouterr().out


@pytest.fixture
def bash_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    path = tmp_path / "completion.sh"
    path.write_text(script("bash", capsys), encoding="utf-8")
    return path


def offered(bash_script: Path, line: str) -> set[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = (
        f"source {bash_script}; function=$(complete -p jocor-fast | grep -o -- '-F [^ ]*' | cut -c4-); "
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; COMP_POINT={len(line)}; "
        f"$function jocor-fast '{words[-1]}' '{words[-2]}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=bash_script.parent)
    return {word.strip() for word in done.stdout.split("\n") if word.strip()}


def test_bash_completes_commands_options_and_their_values(bash_script: Path) -> None:
    assert offered(bash_script, "jocor-fast ") >= set(COMMANDS)
    assert offered(bash_script, "jocor-fast tr") == {"train"}
    assert offered(bash_script, "jocor-fast train --noise-") == {"--noise-rate", "--noise-seed", "--noise-matrix"}
    assert offered(bash_script, "jocor-fast train --method ") == set(OPTIONS["method"].choices)
    assert offered(bash_script, "jocor-fast train --dataset ") == set(DATASETS)
    assert "mnist" in offered(bash_script, "jocor-fast reproduce ")
    assert "--grid" in offered(bash_script, "jocor-fast search-lambda --")
    (bash_script.parent / "runs").mkdir()
    assert "runs" in {path.rstrip("/") for path in offered(bash_script, "jocor-fast plot r")}


@pytest.mark.parametrize("shell", SHELLS)
def test_there_is_a_script_for_every_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "jocor-fast" in text
    assert "--co-lambda" in text or shell == "tcsh"  # shtab's tcsh completes commands and their first options


def test_another_shell_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "fish"]) == 2
    error = capsys.readouterr().err
    assert error == "jocor-fast: error: --print-completion must be one of bash, zsh, tcsh, got 'fish'\n"
