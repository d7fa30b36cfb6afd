"""Call the three steps of csrc/cuda, compiled for the host, with NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LOGIT_TYPES = ("float16", "bfloat16", "float32", "float64")
DISAGREEMENTS = ("ignored", "preferred", "required")
ROBUST_KINDS = ("gce", "sce", "nce_rce", "cores")
LABEL_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


class LogitPair(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64), ("classes", ctypes.c_int64),
        ("label_type", ctypes.c_int), ("labels", ctypes.c_void_p), ("label_stride", ctypes.c_int64),
        ("has_ignore_index", ctypes.c_bool), ("ignore_index", ctypes.c_int64), ("co_lambda", ctypes.c_double),
        ("type", ctypes.c_int), ("logits1", ctypes.c_void_p), ("logits2", ctypes.c_void_p),
        ("row_stride1", ctypes.c_int64), ("row_stride2", ctypes.c_int64),
    ]  # fmt: skip


class RowParams(ctypes.Structure):
    _fields_ = [
        ("pair", LogitPair), ("per_sample", ctypes.c_void_p), ("statistics", ctypes.c_void_p),
        ("cross_entropy1", ctypes.c_void_p), ("cross_entropy2", ctypes.c_void_p), ("row_state", ctypes.c_void_p),
        ("compare_predictions", ctypes.c_bool),
        ("exponentials1", ctypes.c_void_p), ("exponentials2", ctypes.c_void_p), ("kept_rows", ctypes.c_void_p),
    ]  # fmt: skip


class SelectionParams(ctypes.Structure):
    _fields_ = [
        ("is_double", ctypes.c_bool), ("rows", ctypes.c_int64), ("losses", ctypes.c_void_p),
        ("also_finite", ctypes.c_void_p), ("row_state", ctypes.c_void_p), ("disagreement", ctypes.c_uint8),
        ("num_keep_pointer", ctypes.c_void_p), ("num_keep", ctypes.c_int64),
        ("forget_rate_pointer", ctypes.c_void_p), ("forget_rate", ctypes.c_double), ("round_down", ctypes.c_bool),
        ("selected", ctypes.c_void_p), ("num_selected", ctypes.c_void_p), ("num_nonfinite", ctypes.c_void_p),
        ("mean_of", ctypes.c_void_p), ("mean_offset", ctypes.c_void_p), ("mean", ctypes.c_void_p),
    ]  # fmt: skip


class GradientParams(ctypes.Structure):
    _fields_ = [
        ("pair", LogitPair), ("statistics", ctypes.c_void_p), ("grad_output", ctypes.c_void_p),
        ("grad_stride", ctypes.c_int64), ("selected1", ctypes.c_void_p),
        ("selected2", ctypes.c_void_p), ("num_selected1", ctypes.c_void_p), ("num_selected2", ctypes.c_void_p),
        ("grad1", ctypes.c_void_p), ("grad2", ctypes.c_void_p), ("kept_rows", ctypes.c_void_p),
    ]  # fmt: skip


class Logits(ctypes.Structure):
    _fields_ = [
        *LogitPair._fields_[:7], ("type", ctypes.c_int), ("logits", ctypes.c_void_p), ("row_stride", ctypes.c_int64),
    ]  # fmt: skip


class RobustRowParams(ctypes.Structure):
    _fields_ = [
        ("logits", Logits), ("kind", ctypes.c_uint8), ("a", ctypes.c_double), ("b", ctypes.c_double),
        ("per_sample", ctypes.c_void_p), ("statistics", ctypes.c_void_p), ("row_state", ctypes.c_void_p),
        ("sieve", ctypes.c_bool),
    ]  # fmt: skip


class RobustGradientParams(ctypes.Structure):
    _fields_ = [
        ("logits", Logits), ("statistics", ctypes.c_void_p), ("grad_output", ctypes.c_void_p),
        ("grad_stride", ctypes.c_int64), ("selected", ctypes.c_void_p), ("num_selected", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
    ]  # fmt: skip


STRUCTS = (RowParams, SelectionParams, GradientParams, RobustRowParams, RobustGradientParams)


@dataclass
class Launch:
    kernel: str  # with its template arguments
    blocks: int
    threads: int
    linked: bool
    cluster: bool


@dataclass
class Pair:
    """Two logit matrices in memory as the kernels read them, their labels and what was asked for.

    `logits1` and `logits2` are [rows, classes] views with contiguous columns, of `dtype` ("bfloat16": its bits,
    uint16).
    """

    dtype: str
    logits1: np.ndarray[Any, Any]
    logits2: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    co_lambda: float = 0.9
    ignore_index: int | None = None

    @property
    def real(self) -> type[np.floating[Any]]:
        return np.float64 if self.dtype == "float64" else np.float32

    def as_struct(self) -> LogitPair:
        size = self.logits1.itemsize
        return LogitPair(
            type=LOGIT_TYPES.index(self.dtype),
            logits1=self.logits1.ctypes.data,
            logits2=self.logits2.ctypes.data,
            row_stride1=self.logits1.strides[0] // size,
            row_stride2=self.logits2.strides[0] // size,
            rows=self.logits1.shape[0],
            classes=self.logits1.shape[1],
            label_type=LABEL_TYPES.index(self.labels.dtype.name),
            labels=self.labels.ctypes.data,
            label_stride=self.labels.strides[0] // self.labels.itemsize,
            has_ignore_index=self.ignore_index is not None,
            ignore_index=self.ignore_index or 0,
            co_lambda=self.co_lambda,
        )


@dataclass
class Single:
    """One network's logits, labels, and a robust loss of them; as `Pair`."""

    dtype: str
    logits: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    kind: str
    a: float = 0.0
    b: float = 0.0
    sieve: bool = False
    ignore_index: int | None = None

    @property
    def real(self) -> type[np.floating[Any]]:
        return np.float64 if self.dtype == "float64" else np.float32

    def as_struct(self) -> Logits:
        return Logits(
            rows=self.logits.shape[0],
            classes=self.logits.shape[1],
            label_type=LABEL_TYPES.index(self.labels.dtype.name),
            labels=self.labels.ctypes.data,
            label_stride=self.labels.strides[0] // self.labels.itemsize,
            has_ignore_index=self.ignore_index is not None,
            ignore_index=self.ignore_index or 0,
            type=LOGIT_TYPES.index(self.dtype),
            logits=self.logits.ctypes.data,
            row_stride=self.logits.strides[0] // self.logits.itemsize,
        )


@dataclass
class RobustResults:
    per_sample: np.ndarray[Any, Any]
    statistics: np.ndarray[Any, Any]  # [rows, 4]
    row_state: np.ndarray[Any, Any]


@dataclass
class RowResults:
    per_sample: np.ndarray[Any, Any]
    statistics: np.ndarray[Any, Any]  # [rows, 4]
    cross_entropy1: np.ndarray[Any, Any]
    cross_entropy2: np.ndarray[Any, Any]
    row_state: np.ndarray[Any, Any]


@dataclass
class SelectionResults:
    selected: np.ndarray[Any, Any]
    num_selected: int
    num_nonfinite: int
    mean: float


def address(array: np.ndarray[Any, Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def dirty(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array whose every byte is 0xA5: what is not written shows."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = 0xA5
    return array


class HostKernels:
    """The library, and its three steps."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        for name in (
            "row_losses", "select_small_loss", "row_losses_and_selection", "row_gradients", "robust_losses",
            "robust_losses_and_selection", "robust_gradients", "take_launches",
        ):  # fmt: skip
            getattr(self.library, f"kernels_{name}").restype = ctypes.c_char_p
        self.library.kernels_size_of_parameters.restype = ctypes.c_size_t
        for step, struct in enumerate(STRUCTS):
            assert self.library.kernels_size_of_parameters(step) == ctypes.sizeof(struct), struct

    def set_order(self, descending: bool) -> None:
        self.library.kernels_set_order(ctypes.c_bool(descending))

    def set_limits(self, most_threads: int = 1024, most_blocks: int = 2**31 - 1) -> None:
        self.library.kernels_set_limits(most_threads, most_blocks)

    def take_launches(self) -> list[Launch]:
        lines = [line.split("\t") for line in self.library.kernels_take_launches().decode().splitlines()]
        return [
            Launch(kernel, int(blocks), int(threads), linked == "linked", cluster == "cluster")
            for kernel, blocks, threads, linked, cluster in lines
        ]

    def answers(self, outcomes: Sequence[int]) -> list[bool]:
        """Return the answers to a question of a device whose calls end in a no (0), a yes (1) or an error (-1)."""
        answers = (ctypes.c_bool * len(outcomes))()
        self.library.kernels_ask((ctypes.c_int * len(outcomes))(*outcomes), len(outcomes), answers)
        return list(answers)

    def call(self, step: str, *parameters: ctypes.Structure) -> None:
        error = getattr(self.library, f"kernels_{step}")(*(ctypes.byref(p) for p in parameters))
        if error is not None:
            raise RuntimeError(error.decode())

    # --- the steps --------------------------------------------------------------------------------------------------

    def _rows(self, pair: Pair, compare_predictions: bool) -> tuple[RowParams, RowResults]:
        rows = len(pair.labels)
        results = RowResults(
            *(dirty(shape, pair.real) for shape in (rows, (rows, 4), rows, rows)), row_state=dirty(rows, np.uint8)
        )
        params = RowParams(pair.as_struct(), *(address(array) for array in vars(results).values()), compare_predictions)
        return params, results

    def row_losses(self, pair: Pair, *, compare_predictions: bool = True) -> RowResults:
        params, results = self._rows(pair, compare_predictions)
        self.call("row_losses", params)
        return results

    def _selection(
        self,
        losses: np.ndarray[Any, Any],
        row_state: np.ndarray[Any, Any] | None = None,
        also_finite: np.ndarray[Any, Any] | None = None,
        disagreement: str = "ignored",
        num_keep: int | np.ndarray[Any, Any] | None = None,
        forget_rate: float | np.ndarray[Any, Any] = 0.0,
        round_down: bool = False,
        mean_of: np.ndarray[Any, Any] | None = None,
        mean_offset: float | None = None,
        selected: np.ndarray[Any, Any] | None = None,
    ) -> tuple[SelectionParams, list[np.ndarray[Any, Any]]]:
        """`num_keep` and `forget_rate` as arrays [1] are read by the kernel. `selected` may be `row_state`."""
        selected = dirty(len(losses), np.uint8) if selected is None else selected
        outputs = [selected, dirty(1, np.int64), dirty(1, np.int64), dirty(1, losses.dtype)]
        if mean_offset is not None:  # where the mean is to be written, as the operator has it
            outputs[3][0] = mean_offset
        params = SelectionParams(
            is_double=losses.dtype == np.float64,
            rows=len(losses),
            losses=address(losses),
            also_finite=address(also_finite),
            row_state=address(row_state),
            disagreement=DISAGREEMENTS.index(disagreement),
            num_keep_pointer=num_keep.ctypes.data if isinstance(num_keep, np.ndarray) else None,
            num_keep=-1 if isinstance(num_keep, np.ndarray) or num_keep is None else int(num_keep),
            forget_rate_pointer=forget_rate.ctypes.data if isinstance(forget_rate, np.ndarray) else None,
            forget_rate=-1 if isinstance(forget_rate, np.ndarray) else forget_rate,
            round_down=round_down,
            selected=address(outputs[0]),
            num_selected=address(outputs[1]),
            num_nonfinite=address(outputs[2]),
            mean_of=address(mean_of),
            mean_offset=None if mean_offset is None else address(outputs[3]),
            mean=None if mean_of is None else address(outputs[3]),
        )
        return params, outputs

    @staticmethod
    def _selection_results(outputs: list[np.ndarray[Any, Any]]) -> SelectionResults:
        selected, num_selected, num_nonfinite, mean = outputs
        assert set(np.unique(selected)) <= {0, 1}
        return SelectionResults(selected.astype(bool), int(num_selected[0]), int(num_nonfinite[0]), float(mean[0]))

    def select_small_loss(self, losses: np.ndarray[Any, Any], **settings: Any) -> SelectionResults:
        params, outputs = self._selection(losses, **settings)
        self.call("select_small_loss", params)
        return self._selection_results(outputs)

    def row_losses_and_selection(self, pair: Pair, **settings: Any) -> tuple[RowResults, SelectionResults]:
        """Run both as the operator does: the selection reads the rows' states, then replaces them by its choice."""
        row_params, results = self._rows(pair, settings.get("disagreement", "ignored") != "ignored")
        params, outputs = self._selection(
            results.per_sample,
            row_state=results.row_state,
            selected=results.row_state,
            mean_of=results.per_sample,
            **settings,
        )
        self.call("row_losses_and_selection", row_params, params)
        return results, self._selection_results(outputs)

    def row_gradients(
        self,
        pair: Pair,
        statistics: np.ndarray[Any, Any],
        grad_output: np.ndarray[Any, Any],
        *,
        selected1: np.ndarray[Any, Any] | None = None,
        selected2: np.ndarray[Any, Any] | None = None,
        wanted: tuple[bool, bool] = (True, True),
        offset: int = 0,
    ) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None]:
        """Return gradients [rows, classes] in the logits' type; `offset` columns precede them in memory."""
        shape = pair.logits1.shape
        size = shape[0] * shape[1]
        memory = [dirty(size + offset + 8, pair.logits1.dtype) if want else None for want in wanted]
        gradients = [None if m is None else m[offset : offset + size].reshape(shape) for m in memory]
        counts = [None if s is None else np.array([np.count_nonzero(s)], np.int64) for s in (selected1, selected2)]
        params = GradientParams(
            pair.as_struct(), address(statistics), address(grad_output), grad_output.strides[0] // grad_output.itemsize,
            address(selected1), address(selected2), address(counts[0]), address(counts[1]),
            address(gradients[0]), address(gradients[1]),
        )  # fmt: skip
        self.call("row_gradients", params)
        for m in memory:
            if m is not None:  # nothing is written around the gradient
                around = np.concatenate([m[:offset], m[offset + size :]]).view(np.uint8)
                assert (around == 0xA5).all()
        return gradients[0], gradients[1]

    # --- robust losses ------------------------------------------------------------------------------------------------

    def _robust(self, single: Single) -> tuple[RobustRowParams, RobustResults]:
        rows = len(single.labels)
        results = RobustResults(dirty(rows, single.real), dirty((rows, 4), single.real), dirty(rows, np.uint8))
        loss = (ROBUST_KINDS.index(single.kind), single.a, single.b)
        params = RobustRowParams(
            single.as_struct(), *loss, *(address(array) for array in vars(results).values()), single.sieve
        )
        return params, results

    def robust_losses(self, single: Single) -> RobustResults:
        params, results = self._robust(single)
        self.call("robust_losses", params)
        return results

    def robust_losses_and_selection(self, single: Single) -> tuple[RobustResults, SelectionResults]:
        row_params, results = self._robust(single)
        params, outputs = self._selection(
            results.per_sample,
            row_state=results.row_state,
            selected=results.row_state,
            mean_of=results.per_sample,
            disagreement="required" if single.sieve else "ignored",
            num_keep=2**63 - 1,
        )
        self.call("robust_losses_and_selection", row_params, params)
        return results, self._selection_results(outputs)

    def robust_gradients(
        self,
        single: Single,
        statistics: np.ndarray[Any, Any],
        grad_output: np.ndarray[Any, Any],
        *,
        selected: np.ndarray[Any, Any] | None = None,
        offset: int = 0,
    ) -> np.ndarray[Any, Any]:
        """Return the gradient [rows, classes] in the logits' type; `offset` columns precede it in memory."""
        shape = single.logits.shape
        size = shape[0] * shape[1]
        memory = dirty(size + offset + 8, single.logits.dtype)
        gradient = memory[offset : offset + size].reshape(shape)
        count = None if selected is None else np.array([np.count_nonzero(selected)], np.int64)
        params = RobustGradientParams(
            single.as_struct(), address(statistics), address(grad_output),
            grad_output.strides[0] // grad_output.itemsize, address(selected), address(count), address(gradient),
        )  # fmt: skip
        self.call("robust_gradients", params)
        around = np.concatenate([memory[:offset], memory[offset + size :]]).view(np.uint8)
        assert (around == 0xA5).all()
        return gradient
