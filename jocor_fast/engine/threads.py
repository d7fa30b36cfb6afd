"""How many threads a step of training on the CPU has: all that torch may use, or one where that is faster.

A step of a small network takes a millisecond. On cores that other programs use too, a thread that is ready waits longer
than that for one that has lost its core, and two threads together are slower than one alone. How busy the cores are
changes, so the run's own steps are timed with one thread and with all, when training begins and every few seconds (at
first sooner: a process that has just started times badly).

No result may depend on what else a machine has to do. Whether it would is tried out: a step is made with all threads
and again, from the same state, with one, and the bits of all that it changes are compared. They are the same where each
thread has whole sums to itself, as for a pair of perceptrons, whose products are one a network; they differ where
threads share a sum, as MKL and oneDNN let them in single products and convolutions: such steps keep all threads. A
trial holds for the shapes of its batch, so there is one in every epoch that keeps another number of rows. It passes the
batch through the networks twice, which torch's own modules do not show afterwards; others may keep more (a counter, a
tensor that is no buffer), and their steps keep all threads too.

An epoch's evaluation, which passes other rows through the same networks, has the threads of the steps before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from jocor_fast.engine.paired_mlp import is_altered
from jocor_fast.engine.plan import StepRates
from jocor_fast.engine.step import TrainingStep
from jocor_fast.methods import StepLoss

BLOCK_SECONDS, BLOCK_STEPS = 0.05, 4  # of steps with either number of threads that are compared, at least
FIRST_PERIOD_SECONDS, PERIOD_SECONDS = 1.0, 5.0  # of steps from one comparison to the next; it doubles up to the second
MOST_COPIED = 2**22  # parameters, for a trial: where there are more, as with wide sparse rows, all threads have work
GAIN = 0.9  # of the time: the other number is taken where it needs less than this


class StepThreads:
    """Makes the steps of a run, each with the number of threads that is the faster one at the time.

    Attributes:
        most: how many threads torch may use, and uses between steps.
        chosen: for the steps.
        on_choice: is told, in a sentence, what was chosen first and whenever that changes.
    """

    def __init__(
        self, step: TrainingStep, networks: Sequence[nn.Module], clock: Callable[[], float] = perf_counter
    ) -> None:
        self.most = self.chosen = torch.get_num_threads()
        self.on_choice: Callable[[str], None] = lambda sentence: None
        self._step, self._networks, self._clock = step, networks, clock
        self._may_choose = (
            self.most > 1
            and step.settings.threads is None
            and step.device.type == "cpu"
            and step.processes.count == 1
            and step.loss_scale is None
            and not callable(step.settings.optimizer)  # which may keep more than can be compared
            and all(map(_shows_no_trial, networks))
            and sum(parameter.numel() for parameter in step.group.parameters) <= MOST_COPIED
        )
        self._tried: set[int] = set()  # numbers of rows that are kept
        self._times: dict[int, float] = {}  # seconds of a step by the number of threads, in a comparison
        self._comparing, self._told = True, False
        self._period = FIRST_PERIOD_SECONDS
        self._begin_block()

    def __call__(
        self, stored: Tensor, labels: Tensor, rates: StepRates, ranks: Tensor | None, samples: Tensor | None
    ) -> StepLoss:
        """Make a step, as `TrainingStep` does."""
        batch = stored, labels, rates, ranks, samples
        if not self._may_choose:
            return self._step(*batch)
        kept = int(rates.keep.num_keep)
        if kept not in self._tried:
            self._tried.add(kept)
            return self._trial(lambda: self._step(*batch))
        number = self.chosen if not self._comparing else next(n for n in (self.most, 1) if n not in self._times)
        _use(number)
        started = self._clock()
        outcome = self._step(*batch)
        self._note(number, self._clock() - started)
        return outcome

    def rest(self) -> None:
        """Give torch its threads again, for what is no step."""
        if self._may_choose:
            _use(self.most)

    def _begin_block(self) -> None:
        self._steps, self._seconds = 0, 0.0

    def _note(self, number: int, seconds: float) -> None:
        self._steps += 1
        self._seconds += seconds
        if not self._comparing:
            if self._seconds >= self._period:
                self._period = min(2 * self._period, PERIOD_SECONDS)
                self._comparing, self._times = True, {}
                self._begin_block()
        elif self._seconds >= BLOCK_SECONDS and self._steps >= BLOCK_STEPS:
            self._times[number] = self._seconds / self._steps
            self._begin_block()
            if len(self._times) == 2:
                self._choose()

    def _choose(self) -> None:
        self._comparing = False
        other = 1 if self.chosen != 1 else self.most
        changes = self._times[other] < GAIN * self._times[self.chosen]
        if changes:
            self.chosen = other
        if changes or not self._told:
            self._told = True
            one, most = (1e3 * self._times[number] for number in (1, self.most))
            self.on_choice(
                f"a step takes {one:.2g} ms with one thread and {most:.2g} ms with {self.most}: "
                f"{'one' if self.chosen == 1 else self.chosen} from here on"
            )

    def _trial(self, step: Callable[[], StepLoss]) -> StepLoss:
        """Make a step with all threads and once more with one; keep all threads where the bits differ."""
        before = self._copied()
        _use(self.most)
        outcome = step()
        after = self._copied()
        self._restore(before)
        _use(1)
        again = step()
        same = all(map(torch.equal, after.all_tensors(), self._copied().all_tensors()))
        if not same or not torch.equal(outcome.per_sample, again.per_sample):
            self._restore(after)
            self.rest()
            self._may_choose, self.chosen = False, self.most
        return outcome

    def _changed(self) -> list[Tensor]:
        """Return the tensors that a step changes in place, the optimiser's apart."""
        buffers = [buffer for network in self._networks for buffer in network.buffers()]
        return [*self._step.group.parameters, *buffers, *self._step.method.state.values()]

    @torch.no_grad()
    def _copied(self) -> _Copies:
        optimizer = {name: [t.clone() for t in kept] for name, kept in self._step.optimizer.state_dict().items()}
        generators = [torch.get_rng_state(), self._step.generator.get_state()]
        return _Copies([tensor.clone() for tensor in self._changed()], optimizer, generators)

    @torch.no_grad()
    def _restore(self, copies: _Copies) -> None:
        for tensor, value in zip(self._changed(), copies.tensors, strict=True):
            tensor.copy_(value)
        self._step.optimizer.load_state_dict(copies.optimizer)
        default, own = copies.generators
        torch.set_rng_state(default)
        self._step.generator.set_state(own)


class _Copies(NamedTuple):
    """What a step changes."""

    tensors: list[Tensor]
    optimizer: dict[str, list[Tensor]]
    generators: list[Tensor]

    def all_tensors(self) -> list[Tensor]:
        return [*self.tensors, *(tensor for kept in self.optimizer.values() for tensor in kept), *self.generators]


def _shows_no_trial(network: nn.Module) -> bool:
    """Return whether all that a forward and a backward pass change of a network are its buffers."""
    modules = list(network.modules())
    parameters = list(network.parameters())
    return (
        all(type(module).__module__.startswith("torch.nn.") and not is_altered(module) for module in modules)
        and not any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for parameter in parameters)
    )  # fmt: skip


def _use(number: int) -> None:
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
