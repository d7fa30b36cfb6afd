"""The build: what it decides and why, how it fails, and what a source distribution holds (cases 39 and 40)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import jocor_fast as jf
from children import python
from jocor_fast._extension import fits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "csrc"))
from build_decision import BuildError, Decision, decide, find_compiler, why_pure  # noqa: E402

NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release {release}, V{release}.88" ;;
  --dryrun) echo '#$ _SPACE_= ' >&2; echo "#\\$ TOP=${{0%/*}}/.." >&2 ;;
esac
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def toolkit(home: Path, release: str = "13.0", runtime_library: str = "lib64/libcudart.so") -> Path:
    """A folder that looks like a CUDA toolkit, with an nvcc that answers what the build asks."""
    executable(home / "bin" / "nvcc", NVCC.format(release=release))
    for file in (home / "include" / "cuda_runtime.h", home / runtime_library):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return home


def wrapper(folder: Path, home: Path) -> Path:
    """A folder with an nvcc that only hands over to the toolkit's."""
    return executable(folder / "nvcc", f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n').parent


def decided(
    *,
    path: Path = Path("/nonexistent"),
    torch_cuda: str | None = "13.0",
    cuda_sources: tuple[str, ...] = ("csrc/cuda/kernels.cu",),
    packages: Path = Path("/nonexistent"),
    **environ: str,
) -> Decision:
    return decide(
        environ={"PATH": str(path), **environ},
        torch_version="2.11.0+cu130" if torch_cuda else "2.11.0+cpu",
        torch_cuda=torch_cuda,
        cuda_sources=cuda_sources,
        package_folders=[str(packages)],
    )


def home_of(decision: Decision) -> Path:
    assert decision.toolkit is not None, decision.reason
    assert decision.reason is None
    return decision.toolkit.home


def test_nvcc_on_path_leads_to_its_toolkit(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda")
    decision = decided(path=home / "bin")
    assert home_of(decision) == home
    assert str(decision) == (f"building the CPU and CUDA parts: toolkit 13.0 in {home}, architectures 8.0 9.0 10.0+PTX")


def test_a_wrapper_on_path_leads_to_the_toolkit_behind_it(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "opt" / "cuda-13.0")
    # As in /usr/local: the folder above the wrapper has an include and a lib of its own, but no toolkit.
    (tmp_path / "local" / "include").mkdir(parents=True)
    assert home_of(decided(path=wrapper(tmp_path / "local" / "bin", home))) == home


def test_a_toolkit_spread_over_usr_is_found_above_nvcc(tmp_path: Path) -> None:
    behind = executable(tmp_path / "lib" / "cuda" / "bin" / "nvcc", NVCC.format(release="13.0")).parents[1]
    usr = toolkit(tmp_path / "usr", runtime_library="lib/x86_64-linux-gnu/libcudart.so")
    decision = decided(path=wrapper(usr / "bin", behind))
    assert home_of(decision) == usr
    assert decision.toolkit is not None
    assert decision.toolkit.libraries == usr / "lib" / "x86_64-linux-gnu"


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_cuda_home_goes_before_nvcc_on_path(tmp_path: Path, variable: str) -> None:
    named, on_path = toolkit(tmp_path / "named"), toolkit(tmp_path / "on_path")
    assert home_of(decided(path=on_path / "bin", **{variable: str(named)})) == named


def test_the_pip_packages_are_a_toolkit_whose_runtime_library_has_a_number(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "nvidia" / "cu13", runtime_library="lib/libcudart.so.13")
    decision = decided(packages=tmp_path)
    assert home_of(decision) == home
    assert decision.toolkit is not None
    assert decision.toolkit.cudart == ":libcudart.so.13"


def test_a_toolkit_of_another_major_on_path_does_not_hide_the_right_one(tmp_path: Path) -> None:
    other = toolkit(tmp_path / "cuda-12.8", release="12.8")
    home = toolkit(tmp_path / "nvidia" / "cu13", runtime_library="lib/libcudart.so.13")
    assert home_of(decided(path=other / "bin", packages=tmp_path)) == home


def test_the_minor_versions_of_toolkit_and_torch_may_differ(tmp_path: Path) -> None:
    decision = decided(path=toolkit(tmp_path / "cuda", release="13.2") / "bin", torch_cuda="13.0")
    assert decision.toolkit is not None
    assert decision.toolkit.release == "13.2"


@pytest.mark.parametrize("missing", ["include/cuda_runtime.h", "lib64/libcudart.so", "bin/nvcc"])
def test_half_a_toolkit_is_none(tmp_path: Path, missing: str) -> None:
    home = toolkit(tmp_path / "cuda")
    (home / missing).unlink()
    assert decided(CUDA_HOME=str(home)).reason == (
        f"CUDA_HOME={home} holds no whole toolkit (bin/nvcc, cuda_runtime.h, libcudart.so)"
    )


@pytest.mark.parametrize(
    ("listed", "architectures"),
    [
        ({}, ("8.0", "9.0", "10.0+PTX")),
        ({"TORCH_CUDA_ARCH_LIST": ""}, ("8.0", "9.0", "10.0+PTX")),
        ({"TORCH_CUDA_ARCH_LIST": "9.0 12.0+PTX"}, ("9.0", "12.0+PTX")),
        ({"TORCH_CUDA_ARCH_LIST": "9.0a;10.0"}, ("9.0a", "10.0")),
    ],
)
def test_architectures_are_torchs_list_or_the_default(
    tmp_path: Path, listed: dict[str, str], architectures: tuple[str, ...]
) -> None:
    assert decided(path=toolkit(tmp_path / "cuda") / "bin", **listed).architectures == architectures


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cuda_sources": ()}, "there are no CUDA sources in csrc/cuda"),
        ({"torch_cuda": None}, "torch 2.11.0+cpu is not a CUDA build"),
        ({"torch_cuda": "12.8"}, "torch is built for CUDA 12, and the toolkit found is 13.0 in "),
        ({"path": Path("/nonexistent")}, "no CUDA 13 toolkit was found"),
        ({"CUDA_HOME": "/nonexistent"}, "CUDA_HOME=/nonexistent holds no whole toolkit"),
    ],
)
def test_without_cuda_the_reason_is_said_and_force_cuda_fails_with_it(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    situation = {"path": toolkit(tmp_path / "cuda") / "bin", **change}
    decision = decided(**situation)  # type: ignore[arg-type]
    assert decision.toolkit is None
    assert decision.architectures == ()
    assert str(decision.reason).startswith(reason)
    assert "\n" not in str(decision)
    with pytest.raises(BuildError, match=f"FORCE_CUDA=1, but the CUDA part cannot be built: {re.escape(reason)}"):
        decided(**situation, FORCE_CUDA="1")  # type: ignore[arg-type]


def test_force_cpu_leaves_a_toolkit_unused(tmp_path: Path) -> None:
    bin_folder = toolkit(tmp_path / "cuda") / "bin"
    assert decided(path=bin_folder, FORCE_CPU="1").reason == "FORCE_CPU=1"
    assert decided(path=bin_folder, FORCE_CPU="0", FORCE_CUDA="").toolkit is not None


def test_switches_that_contradict_or_are_no_switch_are_refused() -> None:
    with pytest.raises(BuildError, match="FORCE_CUDA=1 and FORCE_CPU=1 contradict each other"):
        decided(FORCE_CUDA="1", FORCE_CPU="1")
    with pytest.raises(BuildError, match="FORCE_CUDA is 'yes': accepted are 0 and 1"):
        decided(FORCE_CUDA="yes")


def test_a_compiler_that_cannot_compile_is_named_with_its_complaint(tmp_path: Path) -> None:
    old = executable(tmp_path / "old-c++", "#!/bin/sh\necho \"error: unrecognized option '-std=c++20'\" >&2\nexit 1\n")
    with pytest.raises(BuildError, match=r"old-c\+\+` cannot compile .* it says: error: unrecognized option"):
        find_compiler({"PATH": "/nonexistent", "CXX": str(old)}, ["-std=c++20"], "/nonexistent")


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@pytest.mark.parametrize("source", sorted(ROOT.glob("csrc/cpu/*.cpp")), ids=lambda path: path.stem)
def test_clang_compiles_the_cpu_kernels(source: Path) -> None:
    flags = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    result = subprocess.run(["clang++", *flags, str(source)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def assert_ends_in_one_sentence(result: subprocess.CompletedProcess[str], beginning: str) -> None:
    assert result.returncode == 1, result
    assert result.stderr.startswith(beginning)
    assert result.stderr.count("\n") == 1


@pytest.fixture
def without_torch(tmp_path: Path) -> str:
    """A PYTHONPATH on which `import torch` fails."""
    (tmp_path / "torch.py").write_text("raise ImportError(\"No module named 'torch'\")\n")
    return str(tmp_path)


def no_compiler() -> None:
    raise BuildError("no C++ compiler was found")


@pytest.mark.parametrize(
    ("environ", "platform", "find", "reason"),
    [
        ({}, "linux", lambda: None, None),
        ({}, "linux", no_compiler, "no C++ compiler was found"),
        ({}, "darwin", lambda: None, "kernels are compiled on Linux, and this is darwin"),
        ({"FORCE_CPU": "1"}, "darwin", lambda: None, None),
        ({"JOCOR_FAST_BUILD": "none"}, "linux", lambda: None, "JOCOR_FAST_BUILD=none"),
    ],
)
def test_nothing_is_compiled_where_nothing_can_be_or_by_choice(
    environ: dict[str, str], platform: str, find: Callable[[], object], reason: str | None
) -> None:
    assert why_pure(environ, platform, find) == reason


@pytest.mark.parametrize("asked", [{"FORCE_CPU": "1"}, {"FORCE_CUDA": "1"}, {"CXX": "g++-99"}])
def test_kernels_that_are_asked_for_are_not_left_out(asked: dict[str, str]) -> None:
    with pytest.raises(BuildError, match=r"^no C\+\+ compiler was found: install g\+\+ 11 or newer"):
        why_pure(asked, "linux", no_compiler)


def test_a_wrong_choice_of_build_is_refused() -> None:
    with pytest.raises(BuildError, match="JOCOR_FAST_BUILD is 'cuda': accepted is none"):
        why_pure({"JOCOR_FAST_BUILD": "cuda"}, "linux", no_compiler)


def test_a_compiler_that_is_named_and_absent_ends_setup_in_one_sentence() -> None:
    result = python("setup.py", "build_py", cwd=ROOT, CXX="/nonexistent/c++", JOCOR_FAST_BUILD="")
    assert_ends_in_one_sentence(result, "no C++ compiler was found among /nonexistent/c++: install g++ 11 or newer")


def test_without_a_compiler_a_package_without_kernels_is_built_that_says_so(tmp_path: Path, without_torch: str) -> None:
    """Neither does it need torch, as in a build that pip isolates."""
    environ = {"PATH": "/nonexistent", "CXX": "", "FORCE_CPU": "", "FORCE_CUDA": "", "JOCOR_FAST_BUILD": ""}
    output = tmp_path / "built"
    result = python(
        "setup.py", "build_py", "--build-lib", str(output),
        cwd=ROOT, PYTHONPATH=without_torch, **environ,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    reason = "no C++ compiler was found among c++, g++, clang++"
    assert f"jocor_fast is built WITHOUT COMPILED KERNELS: {reason}\n" in result.stdout
    build = json.loads((output / "jocor_fast" / "_build.json").read_text())
    assert (build["version"], build["compiler"], build["reason"]) == (jf.__version__, None, reason)
    assert not list(output.glob("jocor_fast/_C*.so"))


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs the C++ compiler")
def test_without_torch_setup_ends_in_one_sentence(without_torch: str) -> None:
    result = python("setup.py", "build_ext", cwd=ROOT, PYTHONPATH=without_torch)
    assert_ends_in_one_sentence(result, "jocor_fast is compiled against the torch that will run it")
    assert "pip install --no-build-isolation ." in result.stderr


def test_a_source_distribution_holds_every_source_and_nothing_built(tmp_path: Path, without_torch: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    (tree / "README.md").touch()
    for name in ("csrc", "jocor_fast"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    expected = {
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_file() and path.suffix != ".so" and path.name != "_build.json"
    }
    planted = {"csrc/cuda/planted.cu", "csrc/cuda/planted.cuh", "csrc/cpu/planted.h", "csrc/cpu/planted.cpp"}
    built = ("jocor_fast/_C.so", "jocor_fast/_build.json", "csrc/__pycache__/a.pyc", "jocor_fast/__pycache__/a.pyc")
    for name in (*planted, *built):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()

    result = python("setup.py", "sdist", cwd=tree, PYTHONPATH=without_torch)
    assert result.returncode == 0, result.stderr
    (archive,) = (tree / "dist").glob("jocor_fast-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {member.name.split("/", 1)[1] for member in packed if member.isfile()}
    added_by_packaging = {name for name in names if name.startswith("jocor_fast.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - added_by_packaging == expected | planted


def test_build_info_says_what_this_build_is() -> None:
    info = jf.build_info()
    assert info["torch"] == torch.__version__
    assert info["version"] == jf.__version__
    assert (info["cuda"] is None) == (info["reason"] is not None) == (info["cuda_architectures"] == [])
    assert bool(info["compiler"]) == bool(info["cpu_instruction_sets"])


def test_the_version_is_the_same_wherever_it_stands() -> None:
    for file, line in (
        ("pyproject.toml", f'version = "{jf.__version__}"'),
        ("CITATION.cff", f"version: {jf.__version__}"),
    ):
        assert line in (ROOT / file).read_text().splitlines(), f"{file} does not say {line}"


def not_built(package: Path) -> str:
    (package / "_build.json").unlink()
    return "jocor_fast has not been built"


def another_torch(package: Path) -> str:
    build = json.loads((package / "_build.json").read_text())
    (package / "_build.json").write_text(json.dumps({**build, "torch": "2.10.0+cpu"}))
    return f"jocor_fast was compiled against torch 2.10.0+cpu and torch {torch.__version__}"


@pytest.mark.parametrize(
    ("built", "built_cuda", "running", "running_cuda", "fit"),
    [
        ("2.14.1+cu130", None, "2.14.0+cpu", None, True),
        ("2.14.0", "13.0", "2.14.1+cu132", "13.2", True),
        ("2.14.1+cu130", "13.0", "2.14.1+cu126", "12.6", False),
        ("2.14.1+cu130", "13.0", "2.14.1+cpu", None, False),
        ("2.1.0", None, "2.14.0", None, False),
        ("2.14.1", None, "2.15.0", None, False),
    ],
)
def test_kernels_serve_the_minor_version_of_torch_that_they_were_compiled_against(
    built: str, built_cuda: str | None, running: str, running_cuda: str | None, fit: bool
) -> None:
    assert fits(built, built_cuda, running, running_cuda) == fit


def damaged_extension(package: Path) -> str:
    (extension,) = package.glob("_C.*.so")
    extension.write_bytes(b"")
    return "jocor_fast's compiled part cannot be loaded"


def broken(folder: Path, fault: Callable[[Path], str]) -> str:
    """A copy of the package with a fault, and the sentence that it ends in."""
    return fault(Path(shutil.copytree(Path(jf.__file__).parent, folder / "jocor_fast")))


@pytest.mark.parametrize(("fault", "started_as"), [(not_built, "module"), (damaged_extension, "script")])
def test_the_command_of_a_broken_build_ends_in_one_sentence(
    fault: Callable[[Path], str], started_as: str, tmp_path: Path
) -> None:
    sentence = broken(tmp_path, fault)
    script = tmp_path / "bin" / "jocor-fast"  # as an installation writes it
    script.parent.mkdir()
    script.write_text("import sys\nfrom jocor_fast.cli import main\nsys.exit(main())\n")
    start = ("-m", "jocor_fast") if started_as == "module" else (str(script),)
    result = python(*start, "info", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert all(line.endswith("s so far") for line in result.stdout.splitlines())  # torch may take long to be imported
    assert result.stderr.startswith(f"jocor-fast: error: {sentence}")
    assert "rebuild it with" in result.stderr
    assert result.stderr.count("\n") == 1


CATCHES = """
import sys
for folder in sys.argv[2:]:
    sys.path[0] = folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "jocor_fast"]:
        del sys.modules[name]
    try:
        import jocor_fast
        jocor_fast.jocor_loss
    except ImportError as error:
        print(error)
"""


def test_a_program_that_imports_a_broken_build_gets_the_import_error(tmp_path: Path) -> None:
    """Also one that is started by -m itself, with the command's name among its arguments."""
    faults = (not_built, another_torch, damaged_extension)
    sentences = {str(tmp_path / fault.__name__): broken(tmp_path / fault.__name__, fault) for fault in faults}
    (tmp_path / "program.py").write_text(CATCHES)
    result = python("-m", "program", "jocor_fast", *sentences, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    caught = result.stdout.splitlines()
    assert len(caught) == len(sentences), result.stderr
    for line, sentence in zip(caught, sentences.values(), strict=True):
        assert line.startswith(sentence)
        assert "rebuild it with" in line
