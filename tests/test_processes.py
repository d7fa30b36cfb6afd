"""Several processes train as one would: two on this machine, which meet through gloo (case 45)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jocor_fast as jf
import two_processes
from children import PATIENCE
from engine_cases import blobs, pair_of, same_bits, small_tanh, without_timings
from jocor_fast.engine.plan import whole_batch
from jocor_fast.engine.processes import ALONE, Processes

Results = dict[str, Any]
ALIKE = [name for name in two_processes.SCENARIOS if name.startswith(("method", "network"))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """What each of two processes saw, in all scenarios."""
    folder = tmp_path_factory.mktemp("processes")
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    script = [sys.executable, two_processes.__file__, str(folder)]
    children = [
        subprocess.Popen(script, env={**os.environ, **meeting, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"
    ]
    assert [child.wait(timeout=PATIENCE) for child in children] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def of_both(together: list[Results], name: str) -> list[Results]:
    results = [one[name] for one in together]
    for result in results:
        assert "failed" not in result, result["failed"]
    return results


@functools.cache
def of_one(name: str) -> Results:
    return two_processes.SCENARIOS[name](ALONE)


def interleaved(parts: list[Tensor]) -> Tensor:
    """Rows 0, 2, … of the first process and 1, 3, … of the second, along the last dimension."""
    return torch.stack(parts, -1).flatten(-2)


@pytest.mark.parametrize("name", ALIKE)
def test_two_processes_that_select_together_train_as_one_does(name: str, together: list[Results]) -> None:
    alone = of_one(name)
    both = of_both(together, name)
    for epoch, ids in enumerate(alone["ids"]):
        assert torch.equal(interleaved([one["ids"][epoch] for one in both]), ids)
        assert torch.equal(interleaved([one["selected"][epoch] for one in both]), alone["selected"][epoch])
    for one in both:
        for mine, expected in zip(one["parameters"], alone["parameters"], strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
        assert torch.equal(one["seen"], alone["seen"])
        torch.testing.assert_close(one["loss"], alone["loss"], equal_nan=True, rtol=1e-5, atol=1e-6)
    assert same_bits(both[0]["parameters"], both[1]["parameters"])


@pytest.mark.parametrize("name", [*ALIKE, "small-loss validation"])
def test_both_report_the_numbers_of_all_samples(name: str, together: list[Results]) -> None:
    alone = of_one(name)["lines"]
    first, second = (without_timings(one["lines"]) for one in of_both(together, name))
    assert first == second
    for line, expected in zip(first, without_timings(alone), strict=True):
        assert line["train_loss"] == pytest.approx(expected.pop("train_loss"), rel=1e-5)
        del line["train_loss"]
        assert line == expected


@pytest.mark.parametrize("name", ["own selection", "own loop"])
def test_a_process_that_selects_alone_adds_the_mean_over_its_own_rows(name: str, together: list[Results]) -> None:
    both = of_both(together, name)
    data, networks = blobs(two_processes.BATCH), pair_of(small_tanh)
    for one in both:
        (ids,) = one["ids"]
        assert isinstance(data.inputs, Tensor)
        inputs = data.inputs[ids].float() / 255
        out = jf.reference.jocor_loss(*(network(inputs) for network in networks), data.labels[ids], forget_rate=0.4)
        assert torch.equal(out.selected, one["selected"][0][0])
        (0.5 * out.loss).backward()
    expected = [p - 0.05 * p.grad for network in networks for p in network.parameters() if p.grad is not None]
    for one in both:
        for mine, theirs in zip(one["parameters"], expected, strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-6)


def test_decoupling_leaves_the_step_out_only_where_no_process_has_a_row_that_differs(together: list[Results]) -> None:
    start = two_processes.disagreement(ALONE, ())["parameters"]
    assert same_bits(of_both(together, "none differ")[0]["parameters"], start)
    for name in ("one differs", "both differ"):
        first, second = of_both(together, name)
        assert same_bits(first["parameters"], second["parameters"]), name
        assert not same_bits(first["parameters"], start), name


def test_a_request_is_answered_by_all_at_the_same_step(together: list[Results]) -> None:
    answers = [False, False, False, False, True, False]
    assert [one["answers"] for one in of_both(together, "request")] == [answers, answers]
    assert two_processes.request(ALONE)["answers"] == [False, False, False, True, False, False]


def test_what_fails_in_the_first_process_ends_the_others_with_its_reason(together: list[Results]) -> None:
    first, second = of_both(together, "failure")
    assert first["raised"] == [("OSError", "no space left")] * 2
    assert second["raised"] == [("FailedElsewhere", "no space left")] * 2
    assert first["after"] == second["after"] == [0, 1]  # and they still understand each other


def test_processes_that_are_given_different_things_are_told(together: list[Results]) -> None:
    for one in of_both(together, "disagreements"):
        assert list(one["said"]) == one["asked"]
        for name, said in one["said"].items():
            assert name in said


def test_batches_that_leave_a_process_one_row_are_named_where_batchnorm_cannot_take_it(together: list[Results]) -> None:
    for one in of_both(together, "single rows"):
        assert one["said"].startswith(
            "batch_size: a step would have one sample (batch size 2, training samples 70, proc"
        )


def test_sigterm_that_reaches_one_process_at_the_end_ends_all_of_them_alike(together: list[Results]) -> None:
    assert [one["code"] for one in of_both(together, "ended at the end")] == [143, 143]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1"), True),
        (torch.distributed.DistBackendError("NCCL error"), True),
        (RuntimeError("my sensor timed out"), False),
        (RuntimeError("no connection to the database"), False),
        (OSError("Connection reset by peer"), False),
    ],
)
def test_an_error_of_the_networks_is_not_taken_for_a_lost_process(error: Exception, lost: bool) -> None:
    assert Processes(count=2).lost(error) == lost
    assert not ALONE.lost(error)


def test_a_run_leaves_the_same_networks_in_all_processes(together: list[Results]) -> None:
    first, second = of_both(together, "whole run")
    assert same_bits(first["parameters"], second["parameters"])
    assert without_timings(first["lines"]) == without_timings(second["lines"])


def test_each_process_has_dropout_masks_of_its_own(together: list[Results]) -> None:
    first, second = of_both(together, "drawn")
    assert first["drawn"] != second["drawn"]
    assert first["drawn"] == two_processes.drawn(ALONE)["drawn"]


class Torchrun:
    """The slow run in two processes, under torchrun."""

    def __init__(self, folder: Path, restarts: int = 0) -> None:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        launch.append(f"--max-restarts={restarts}")
        script = [two_processes.__file__, str(folder), "run"]
        self.child = subprocess.Popen([*launch, *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_epoch(self, epoch: int) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.split() == ["epoch", str(epoch)]:
                return
        pytest.fail(f"ended before epoch {epoch}: {self.child.communicate()[1]}")

    def worker(self, rank: int) -> int:
        """The process of this rank, once it is there."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self._find(rank)):
            assert time.monotonic() < deadline, self.child.communicate()[1]
            time.sleep(0.05)
        return found

    def _find(self, rank: int) -> int | None:
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        named = f"RANK={rank}".encode()
        for pid in children:
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                if named in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return int(pid)
        return None

    def end(self) -> tuple[int, str]:
        """Its exit code and what it wrote to the standard error stream."""
        errors = self.child.communicate(timeout=PATIENCE)[1]
        return self.child.returncode, errors


def test_a_run_goes_on_bitwise_after_sigterm(together: list[Results]) -> None:
    for one, expected in zip(of_both(together, "terminated"), of_both(together, "whole run"), strict=True):
        assert (one["code"], one["epochs"], one["others"]) == (143, 6, 1)
        assert without_timings(one["lines"]) == without_timings(expected["lines"])
        assert same_bits(one["parameters"], expected["parameters"])


@pytest.mark.skipif(sys.platform != "linux", reason="finds threads by /proc")
def test_threads_that_could_abort_the_end_of_a_process_end_with_the_group(together: list[Results]) -> None:
    for one in of_both(together, "threads"):
        assert one["after"] <= one["before"] - 2  # of the group for the host; DistributedDataParallel keeps the other


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
def test_a_run_goes_on_bitwise_after_a_process_was_killed(together: list[Results], tmp_path: Path) -> None:
    run = Torchrun(tmp_path, restarts=2)
    run.wait_for_epoch(3)
    os.kill(run.worker(1), signal.SIGKILL)
    run.wait_for_epoch(7)  # of what torchrun has started again
    assert (
        json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    )  # of the process that was left
    code, errors = run.end()
    assert code == 0, errors
    said = "process 0 of 2 has lost another one, which has ended or cannot be reached; resume continues from the last"
    assert f"{said} checkpoint in {tmp_path}" in errors
    expected = of_both(together, "whole run")[0]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert without_timings(lines) == without_timings(expected["lines"])
    networks = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["networks"]
    assert same_bits([value for network in networks for value in network.values()], expected["parameters"])


@pytest.mark.parametrize("loader", ["pillow", "dali"])
def test_two_processes_on_image_files_train_as_one_does(loader: str, together: list[Results]) -> None:
    if loader == "dali":
        pytest.importorskip("nvidia.dali")
    alone = two_processes.images(ALONE, loader)
    both = of_both(together, f"images {loader}")
    for epoch, ids in enumerate(alone["ids"]):
        assert torch.equal(interleaved([one["ids"][epoch] for one in both]), ids)
    for one in both:
        for mine, expected in zip(one["parameters"], alone["parameters"], strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
        assert [line["test_accuracy"] for line in one["lines"]] == [line["test_accuracy"] for line in alone["lines"]]
        assert [line["bad_files"] for line in one["lines"]] == [0, 0]


@pytest.mark.parametrize("loader", ["pillow", "dali"])
def test_bad_files_are_counted_once_by_all_processes(loader: str, together: list[Results]) -> None:
    if loader == "dali":
        pytest.importorskip("nvidia.dali")
    alone = two_processes.images(ALONE, loader, spoilt=True)
    for one in of_both(together, f"spoilt images {loader}"):
        assert one["bad"] == alone["bad"]
        assert len(one["bad"]) == one["lines"][-1]["bad_files"] == 4


@pytest.mark.parametrize(
    ("scope", "batch_size", "samples", "rows"),
    [("process", 16, 1000, 32), ("global", 16, 1000, 16), ("process", 16, 21, 20), ("process", 1, 2, 2)],
)
def test_a_batch_is_what_the_processes_have_together(scope: str, batch_size: int, samples: int, rows: int) -> None:
    asked = two_processes.settings(batch_size=batch_size, batch_scope=scope)
    assert whole_batch(asked, samples, Processes(count=2)) == rows


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 2 processes that share it, got 15"):
        whole_batch(two_processes.settings(batch_size=15, batch_scope="global"), 100, Processes(count=2))
    with pytest.raises(ValueError, match="a sample for each of the 3 processes, got 2"):
        whole_batch(two_processes.settings(), 2, Processes(count=3))
