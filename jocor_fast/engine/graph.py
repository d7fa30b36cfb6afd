"""Training steps as CUDA graphs: recorded once, then replayed without the host.

A small step is host time: the paper's MNIST step is some thirty kernels of a few microseconds each, and launching them
one by one takes longer than they run. Recorded into a graph they are one launch, and here `STEPS_PER_GRAPH` steps are.
What changes from step to step lies in tensors that a recorded step reads: its place in the epoch, from which follow the
rows of its batch and where it writes its metrics, and the rates. What a kernel takes from the host (β1, and what a
method decides in Python) cannot change in a graph; where it does, the steps are recorded again.

The first steps of a run are not recorded, nor is the first after such a change. They set up the libraries, which may
not happen while recording, and they show whether anything in a step waits for the device, which a graph cannot.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from jocor_fast.data.samples import ResidentInputs
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.history import SampleHistory
from jocor_fast.engine.networks import SeparateNetworks, SideStream
from jocor_fast.engine.plan import DeviceRates, EpochPlan
from jocor_fast.engine.step import TrainingStep

STEPS_PER_GRAPH = 8  # a launch costs the host and the device some microseconds, which so many steps share
FIRST_STEPS = 3
LAUNCHES_AHEAD = 4  # how far the host runs ahead: far enough never to be waited for, near enough to stop and to report


class CapturedSteps:
    """The steps of a run on data that lie on the device.

    Attributes:
        why_eager: None, or what keeps the steps from being recorded: the host then launches each of them.
    """

    def __init__(
        self,
        step: TrainingStep,
        source: ResidentInputs,
        labels: Tensor,
        history: SampleHistory,
        *,
        cuda: Any = None,
    ) -> None:
        """Labels are int64 [N], on the inputs' device; `cuda` is what stands in for `torch.cuda`, in tests."""
        self.step = step
        self.source = source
        self.labels = labels
        self.history = history
        self.why_eager: str | None = None
        self._cuda = torch.cuda if cuda is None else cuda
        self._device = labels.device
        self._stream = self._cuda.Stream(self._device)
        if isinstance(step.group, SeparateNetworks) and step.group.apart:
            step.group.side = SideStream(self._cuda, self._device)
        self._rates_on_device = DeviceRates(labels.device)
        self._place = torch.zeros(1, dtype=torch.int64, device=labels.device)  # the next step of the epoch
        self._ahead = torch.arange(STEPS_PER_GRAPH, device=labels.device)
        self._first_steps_left = FIRST_STEPS
        self._launched: deque[Any] = deque()
        self._graphs: dict[int, Any] = {}  # by how many steps they hold
        self._recorded_for: tuple[Hashable, ...] = ()
        self._log: EpochLog | None = None
        self._failed: Any = None

    def begin(self, log: EpochLog, plan: EpochPlan) -> None:
        """Write the epoch's rates and place to the device, and drop the graphs where they no longer hold."""
        recorded_for = (plan.beta1, plan.batch_size, self.step.per_class, self.step.method.phase(plan.epoch))
        if log is not self._log or recorded_for != self._recorded_for:
            self._graphs.clear()
            self._pool = self._cuda.graph_pool_handle()
            self._first_steps_left = max(1, self._first_steps_left)  # other operators may run now
        self._log, self._recorded_for = log, recorded_for
        self._rates = self._rates_on_device.load(plan)
        self._place.fill_(log.step)

    def launch(self, log: EpochLog) -> None:
        """Launch some of the steps that are left of the epoch, and count them in its log."""
        with self._cuda.device(self._device):  # which need not be torch's current one
            log.step += self._launch(log.steps - log.step)

    def _launch(self, left: int) -> int:
        """Launch some of the steps that are left, as many as it says."""
        if self.why_eager is not None:
            self._steps(1)
            return 1
        if self._first_steps_left:
            self._first_steps_left -= 1
            self._try_step()
            return 1
        count = STEPS_PER_GRAPH if left >= STEPS_PER_GRAPH else 1
        graph = self._graphs.get(count)
        if graph is None and (graph := self._record(count)) is None:
            return self._launch(left)
        graph.replay()
        self._wait_for_earlier_launches()
        return count

    def _steps(self, count: int) -> None:
        """So many steps, from the place on: what is recorded."""
        log, source, batch = self._log, self.source, self.step
        assert log is not None
        places = self._place + self._ahead[:count]
        rows = log.rows(places)
        size = len(rows) // count
        stored, labels = source.gather(rows), self.labels.index_select(0, rows)
        outcomes = [
            batch(part, given, self._rates, self.history.ranks_of(samples), samples)
            for part, given, samples in zip(stored.split(size), labels.split(size), rows.split(size), strict=True)
        ]
        log.record_at(places, outcomes)
        self.history.record(rows, labels, outcomes)
        self._place.add_(count)

    def _try_step(self) -> None:
        """One step launched by the host, where it would be recorded; it shows whether it can be."""
        with self._on_own_stream(), self._watching_for_waits() as waits:
            self._steps(1)
        if waits and not self._first_steps_left:  # what is set up or compiled in the steps before may wait
            self._give_up("a step waits for the device, which a graph cannot")

    def _record(self, count: int) -> Any | None:
        """A graph of so many steps, none of which is trained by this; None where they cannot be recorded."""
        self._launched.clear()
        graph = self._new_graph()
        try:
            with self._recording(graph, self._pool):
                self._steps(count)
        except RuntimeError as error:
            self._failed = graph  # the allocator still asks it whose memory is whose
            self._release_generators()
            first = error.__context__ or error  # the end of a broken recording has an error of its own
            self._give_up(str(first).strip().partition("\n")[0] or type(first).__name__)
            return None
        self._graphs[count] = graph
        return graph

    def _new_graph(self) -> Any:
        graph = self._cuda.CUDAGraph()
        # torch's own generator, of dropout, is known to every graph. From torch 2.14 on all are, and this call, which
        # is to go, does nothing but warn.
        register = getattr(graph, "register_generator_state", None)
        if register is not None and self.step.settings.augment != "none":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                register(self.step.generator)
        return graph

    @contextlib.contextmanager
    def _recording(self, graph: Any, pool: Any) -> Iterator[None]:
        # Around it once more the stream, since a recording that fails leaves the current stream where it was.
        # Other threads (a progress bar, another run) may do to the device what this one may not.
        with (
            self._on_own_stream(),
            self._cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            yield

    def _release_generators(self) -> None:
        """Let random numbers be drawn after a recording that failed, by one that ends.

        torch 2.11 takes the generators of a broken recording to be in it still: dropout and crops would be errors.
        """
        with contextlib.suppress(RuntimeError), self._recording(self._new_graph(), self._cuda.graph_pool_handle()):
            self._place.add_(0)

    def _give_up(self, reason: str) -> None:
        self.why_eager = reason
        self._graphs.clear()
        if isinstance(self.step.group, SeparateNetworks):
            self.step.group.side = None
        self._cuda.synchronize()
        warnings.warn(f"no CUDA graph, each step is launched by the host: {reason}", stacklevel=2)

    def _wait_for_earlier_launches(self) -> None:
        event = self._cuda.Event(blocking=True)  # sleeping: several runs may share few cores
        event.record()
        self._launched.append(event)
        if len(self._launched) > LAUNCHES_AHEAD:
            self._launched.popleft().synchronize()

    @contextlib.contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """The stream on which steps are recorded, after all that has been launched, and before all that will be."""
        outside = self._cuda.current_stream()
        self._stream.wait_stream(outside)
        with self._cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    @contextlib.contextmanager
    def _watching_for_waits(self) -> Iterator[list[str]]:
        """Collects torch's warnings that the host waits for the device; others are passed on."""
        waits: list[str] = []
        before = self._cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._cuda.set_sync_debug_mode("warn")
            try:
                yield waits
            finally:
                self._cuda.set_sync_debug_mode(before)
        for warning in caught:
            if "called a synchronizing CUDA operation" in str(warning.message):
                waits.append(str(warning.message))
            elif "Synchronization debug mode" not in str(warning.message):  # that torch may not see every wait
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
