"""What an installed wheel is tried by: its kernels are compiled and in use, and equal the reference in float64."""

from __future__ import annotations

import tempfile
import warnings

import numpy as np
import torch

import jocor_fast as jf

warnings.filterwarnings("error", message=".*plain PyTorch")  # nothing is compiled
info = jf.build_info()
print(info)
assert info["compiler"] is not None, info
assert "site-packages" in jf.__file__, jf.__file__

generator = torch.Generator().manual_seed(0)
first, second = (torch.randn(128, 10, generator=generator).double().requires_grad_() for _ in range(2))
target = torch.randint(10, (128,), generator=generator)
transition = torch.full((10, 10), 0.05).double() + 0.5 * torch.eye(10).double()


def check(name: str, *arguments: object, **settings: object) -> None:
    """Compare a loss and its gradients with the reference."""
    found = []
    for home, real in ((jf, torch.float32), (jf.reference, torch.float64)):
        leaves = [a.detach().to(real).requires_grad_() if a is first or a is second else a for a in arguments]
        out = getattr(home, name)(*leaves, target, **settings)
        loss = out if isinstance(out, torch.Tensor) else out[0]
        loss.sum().backward()
        grads = [leaf.grad.double() for leaf in leaves]
        found.append([loss.detach().double(), *grads])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


check("jocor_loss", first, second, forget_rate=0.4)
check("joint_loss", first, second, co_lambda=0.5)
check("coteaching_loss", first, second, forget_rate=0.4)
check("decoupling_loss", first, second)
check("forward_corrected_loss", first, transition=transition)
losses = torch.randn(128, generator=generator)
assert torch.equal(jf.select_small_loss(losses, num_keep=50), jf.reference.select_small_loss(losses, num_keep=50))
assert jf.JoCoRLoss()(first, second, target, num_keep=50).num_selected == jf.num_keep(100, 0.5)

labels = np.arange(240) % 3
inputs = np.eye(3, 8, dtype=np.float32)[labels] + np.random.default_rng(0).normal(0, 0.2, (240, 8)).astype(np.float32)
noisy = jf.noise.corrupt(labels, jf.noise.symmetric(3, 0.2), seed=0)
with tempfile.TemporaryDirectory() as folder:
    run = jf.train(
        lambda: torch.nn.Linear(8, 3), (inputs, noisy), clean_labels=labels, forget_rate=0.2, epochs=3, ramp_epochs=1,
        batch_size=16,
        device="cpu", output=f"{folder}/run",
    )  # fmt: skip
    assert jf.load_run(f"{folder}/run", networks=lambda: torch.nn.Linear(8, 3)).metrics == run.metrics
print("the public functions run and agree with the reference")
