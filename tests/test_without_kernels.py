"""Without compiled kernels, on any device: the public functions are the reference's, and say so once.

`JOCOR_FAST_BUILD=none` hides the kernels of a process; `make test-plain` runs tests of public behaviour in that way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import jocor_fast as jf
from children import python
from jocor_fast import _extension, _operators
from jocor_fast.cli.program import main
from jocor_fast.files.names import read_metrics

SENTENCE = "jocor_fast has no compiled kernels (JOCOR_FAST_BUILD=none), losses and selections run in plain PyTorch"

EVERY_FUNCTION = """
import json
import torch
import jocor_fast as jf

generator = torch.Generator().manual_seed(0)
logits = [torch.randn(64, 10, generator=generator) for _ in range(2)]
target = torch.randint(0, 10, (64,), generator=generator)
tied = torch.tensor([1.0, 0.0, 1.0, -0.0, 1.0, float("nan")])
transition = torch.from_numpy(jf.noise.symmetric(10, 0.4))

def every(z1, z2):
    joint = jf.jocor_loss(z1, z2, target, forget_rate=0.3, ignore_index=0)
    module = jf.JoCoRLoss(0.5)(z1, z2, target, num_keep=torch.tensor(7))
    exchanged = jf.coteaching_loss(z1, z2, target, forget_rate=0.3, disagreement=True, rounding="floor")
    decoupled = jf.decoupling_loss(z1, z2, target)
    corrected = jf.forward_corrected_loss(z1, target, transition)
    linear = jf.linear_jocor_loss(z1, torch.eye(10), z2, torch.eye(10), target, forget_rate=0.3)
    rows = jf.joint_loss(z1, z2, target).mean()
    sieved = jf.cores_loss(z1, target, ignore_index=0)
    robust = jf.gce_loss(z1, target) + jf.sce_loss(z2, target) + jf.nce_rce_loss(z2, target) + sieved.loss
    losses = linear.loss, joint.loss, module.loss, exchanged.loss, decoupled.loss, corrected, rows, robust
    outs = linear, joint, module, decoupled, sieved
    masks = *(out.selected for out in outs), exchanged.selected1, jf.select_small_loss(tied, 3)
    return torch.stack(losses), torch.cat([mask.long() for mask in masks])

def results(function):
    z1, z2 = (z.clone().requires_grad_() for z in logits)
    losses, masks = function(z1, z2)
    losses.sum().backward()
    return losses.tolist(), masks.tolist(), z1.grad.tolist(), z2.grad.tolist(), jf.num_keep(10, 0.3)
"""
PRINT = "print(json.dumps([results(every), results(torch.compile(every, fullgraph=True, backend='aot_eager'))]))"


def test_every_loss_is_that_of_the_kernels_and_one_warning_says_what_is_slower(tmp_path: Path) -> None:
    """Eager, and compiled by torch.compile."""
    (tmp_path / "every.py").write_text(EVERY_FUNCTION + PRINT)
    child = python("every.py", cwd=tmp_path, JOCOR_FAST_BUILD="none")
    assert child.returncode == 0, child.stderr
    assert child.stderr.count(SENTENCE) == 1
    assert "pip install --no-build-isolation --force-reinstall --no-deps ." in child.stderr
    names: dict[str, Any] = {}
    exec(EVERY_FUNCTION, names)
    theirs = names["results"](names["every"])
    for mine in json.loads(child.stdout):
        for index in (0, 2, 3):
            np.testing.assert_allclose(mine[index], theirs[index], rtol=2e-5, atol=1e-7)
        assert (mine[1], mine[4]) == (theirs[1], theirs[4])


@pytest.mark.usefixtures("in_an_empty_folder", "curves_at_once")
def test_a_run_is_that_of_the_kernels_and_its_heading_says_which() -> None:
    run = ["train", "--noise-rate", "0.5", "--epochs", "2", "--ramp-epochs", "1", "--device", "cpu", "--output"]
    child = python("-m", "jocor_fast", *run, "plain", cwd=Path(), JOCOR_FAST_BUILD="none")
    assert child.returncode == 0, child.stderr
    assert child.stderr.count(SENTENCE) == 1
    assert "kernels   none compiled: losses in plain PyTorch\n" in child.stdout
    assert main([*run, "compiled"]) == 0
    mine, theirs = read_metrics(Path("plain")), read_metrics(Path("compiled"))
    assert len(mine) == len(theirs) == 2
    for a, b in zip(mine, theirs, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        for name in ("label_precision", "test_accuracy"):
            assert a[name] == pytest.approx(b[name], abs=0.01)


@pytest.mark.parametrize(
    ("cuda", "sentence"),
    [
        ("13.0", "jocor_fast has no CUDA kernels \\(no toolkit\\), .* with a CUDA toolkit, `pip install"),
        (None, "jocor_fast has no kernels for cuda tensors under torch"),  # ROCm
    ],
)
def test_tensors_on_a_device_without_kernels_are_served_by_plain_pytorch(
    cuda: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_extension, _operators):
        monkeypatch.setattr(module, "DEVICES", ("cpu", "meta"))
    monkeypatch.setattr(_extension, "compiled", object())
    monkeypatch.setitem(_extension._BUILD, "reason", "no toolkit")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    _operators._warn_once.cache_clear()
    with FakeTensorMode():  # tensors on a device that need not be there
        logits = torch.empty(4, 3, device="cuda")
        target = torch.empty(4, dtype=torch.int64, device="cuda")
        with pytest.warns(UserWarning, match=f"^{sentence}") as warned:
            outputs = [jf.jocor_loss(logits, logits, target, num_keep=2) for _ in range(2)]
    out = outputs[-1]
    assert out.per_sample.device.type == out.loss.device.type == "cuda"
    assert [warning.filename for warning in warned] == [__file__]


def test_info_says_that_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_extension, "compiled", None)
    monkeypatch.setattr(_extension, "DEVICES", ())
    monkeypatch.setattr(_extension, "_BUILD", {**_extension._BUILD, "compiler": None, "reason": "no compiler"})
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"jocor_fast  {jf.__version__}, not compiled: no compiler\n" in text
    assert "kernels     jocor_fast has no compiled kernels (no compiler)" in text
