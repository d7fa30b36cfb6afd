"""Sparse inputs train as the dense matrix does, through every entry; other matrices are refused with one message."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor, nn

import jocor_fast as jf
from checkpoint_cases import Killed, assert_same, killed_at
from engine_cases import fit, parameters, same_bits, settings, train_epochs, training, without_timings
from jocor_fast._extension import compiled
from jocor_fast.cli import main
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.samples import Samples, input_warnings
from jocor_fast.data.sparse import csr_inputs
from jocor_fast.engine import sparse_perceptrons
from jocor_fast.errors import DataError, RunError
from jocor_fast.models.networks import mlp
from jocor_fast.runs.fit import Run

INPUTS, CLASSES = 90, 3
needs_kernels = pytest.mark.skipif(compiled is None, reason="compiled kernels are hidden")
READ, DENSE = "launched by the host, the first layer reads sparse rows", "launched by the host, sparse rows made dense"


@cache
def counts(samples: int = 200, seed: int = 0) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Counts of words, some of each class; the first text has none."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=samples)
    rates = 0.02 + 0.5 * (np.arange(INPUTS) % (2 * CLASSES) == labels[:, None])
    matrix = generator.poisson(rates).astype(np.float32)
    matrix[0] = 0
    return scipy.sparse.csr_matrix(matrix), labels


def network() -> nn.Module:
    return mlp(INPUTS, CLASSES, hidden=21)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 20), nn.Dropout(0.0), nn.ReLU(), nn.Linear(20, CLASSES))


def train(inputs: Any, labels: np.ndarray, build: Any = network, **changes: Any) -> jf.Run:
    data = inputs, labels
    asked = {"forget_rate": 0.2, "ramp_epochs": 2, "epochs": 4, "batch_size": 32, "device": "cpu", **changes}
    return jf.train(build, data, test_data=data, val_data=data, **asked)


@pytest.fixture
def dense_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense inputs stay dense, however many zeros they have."""
    monkeypatch.setattr(sparse_perceptrons, "MOST_FILLED", 0.0)


def assert_alike(sparse: jf.Run, dense: jf.Run, tolerance: float = 5e-6) -> None:
    for one, other in zip(parameters(sparse.networks), parameters(dense.networks), strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    for line, expected in zip(sparse.metrics, dense.metrics, strict=True):
        assert line["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
        assert line["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=0.02)


@pytest.mark.usefixtures("dense_products")
@pytest.mark.parametrize(
    ("changes", "build", "steps"),
    [
        ({}, network, READ),
        ({"method": "standard"}, network, READ),
        ({"method": "f-correction"}, network, READ),
        ({"method": "coteaching"}, network, READ),
        ({"forget_rate": "adaptive"}, network, READ),
        ({"weight_decay": 1e-3}, network, READ),
        ({"optimizer": "sgd", "lr": 0.1}, network, READ),
        ({"beta1_after": 0.0}, network, READ),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}, network, DENSE),
        ({}, with_dropout, DENSE),
        ({"precision": "bfloat16"}, network, DENSE),
    ],
)
def test_training_is_that_on_the_dense_matrix(changes: dict[str, Any], build: Any, steps: str) -> None:
    matrix, labels = counts()
    sparse = train(matrix, labels, build, **changes)
    assert sparse.summary["environment"]["steps"] == steps
    assert_alike(sparse, train(matrix.toarray(), labels, build, **changes))


@needs_kernels
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_dense_inputs_with_many_zeros_train_like_sparse_ones(dtype: str) -> None:
    matrix, labels = counts()
    dense = train(matrix.toarray().astype(dtype), labels)
    share = matrix.nnz / (matrix.shape[0] * matrix.shape[1])
    reads = f"launched by the host, the first layer reads the {100 * share:.3g} % of the inputs that are not 0"
    assert dense.summary["environment"]["steps"] == reads
    sparse = train(matrix * (np.float32(1 / 255) if dtype == "uint8" else 1), labels)
    assert without_timings(dense.metrics) == without_timings(sparse.metrics)
    assert same_bits(parameters(dense.networks), parameters(sparse.networks))


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "build"),
    [({"weight_decay": 1e-3}, network), ({"optimizer": "sgd", "lr": 0.1}, network), ({}, with_dropout)],
)
def test_what_reads_no_row_by_itself_keeps_dense_inputs(changes: dict[str, Any], build: Any) -> None:
    matrix, labels = counts()
    assert train(matrix.toarray(), labels, build, **changes).summary["environment"]["steps"] == "launched by the host"


@needs_kernels
def test_inputs_with_few_zeros_or_many_numbers_stay_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, labels = counts()
    full = matrix.toarray() + (np.arange(INPUTS) % 3 > 0)
    assert train(full, labels).summary["environment"]["steps"] == "launched by the host"
    monkeypatch.setattr(sparse_perceptrons, "MOST_ENTRIES", matrix.nnz - 1)
    assert train(matrix.toarray(), labels).summary["environment"]["steps"] == "launched by the host"


@needs_kernels
def test_a_run_that_began_with_dense_products_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, labels = counts()[0].toarray(), counts()[1]

    def killed(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise Killed

    with monkeypatch.context() as before:
        before.setattr(sparse_perceptrons, "MOST_FILLED", 0.0)
        whole = train(dense, labels)
        with pytest.raises(Killed):
            train(dense, labels, output=tmp_path, on_epoch=killed)
    resumed = train(dense, labels, output=tmp_path, resume=True)
    assert_same(resumed, whole, tmp_path)
    assert resumed.summary["environment"]["steps"] == "launched by the host"


@needs_kernels
@pytest.mark.parametrize("inputs", ["sparse", "dense"])
def test_a_run_that_skips_zeros_is_resumed_with_kernels_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: str
) -> None:
    from jocor_fast.engine import optimizer

    matrix, labels = counts()
    given = matrix if inputs == "sparse" else matrix.toarray()

    def killed(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise Killed

    with pytest.raises(Killed):
        train(given, labels, output=tmp_path, on_epoch=killed)
    monkeypatch.setattr(optimizer, "compiled", None)
    monkeypatch.setattr(sparse_perceptrons, "compiled", None)
    with pytest.raises(RunError, match="cannot be resumed: its steps skip what is 0 in the inputs, and jocor_fast"):
        train(given, labels, output=tmp_path, resume=True)


@needs_kernels
def test_plain_torch_trains_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from jocor_fast.engine import optimizer, sparse_perceptrons

    ours = train(*counts())
    monkeypatch.setattr(optimizer, "compiled", None)
    for name, plain in (("linear", "linear"), ("linear_gradient", "gradient")):
        monkeypatch.setattr(sparse_perceptrons, f"sparse_{name}", getattr(sparse_perceptrons, f"_plain_{plain}"))
    assert_alike(train(*counts()), ours)


@pytest.mark.usefixtures("dense_products")
@pytest.mark.parametrize("trained", ["sparse", "dense"])
def test_either_kind_is_evaluated_on_the_other(trained: str) -> None:
    matrix, labels = counts()
    kinds = {"sparse": matrix, "dense": matrix.toarray()}
    asked: dict[str, Any] = {"forget_rate": 0.2, "ramp_epochs": 2, "epochs": 4, "batch_size": 32, "device": "cpu"}
    train_data = kinds.pop(trained), labels
    run = jf.train(network, train_data, test_data=(kinds.popitem()[1], labels), val_data=train_data, **asked)
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(run.metrics[-1]["val_accuracy"], abs=0.01)


@pytest.mark.usefixtures("dense_products")
def test_a_method_that_chooses_its_samples_predicts_sparse_rows() -> None:
    matrix, labels = counts()
    assert_alike(*(train(X, labels, method="taks", forget_rate=0.05) for X in (matrix, matrix.toarray())))


def forms() -> dict[str, Any]:
    matrix, _ = counts()
    twice, unsorted = matrix.tocoo(), matrix.copy()
    twice = scipy.sparse.csr_matrix(  # every entry in two halves, and an explicit zero
        (
            np.append(np.repeat(matrix.data / 2, 2), 0),
            np.append(np.repeat(matrix.indices, 2), 0),
            np.append(2 * matrix.indptr[:-1], 2 * matrix.nnz + 1),
        ),
        shape=matrix.shape,
    )
    for row in range(matrix.shape[0]):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        unsorted.indices[part], unsorted.data[part] = matrix.indices[part][::-1], matrix.data[part][::-1]
    long = scipy.sparse.csr_array(matrix, dtype=np.float64)
    long.indices, long.indptr = long.indices.astype(np.int64), long.indptr.astype(np.int64)
    return {
        "twice": twice,
        "unsorted": unsorted,
        "int64 indices, float64": long,
        "integers": matrix.astype(np.int64),
        "uint8, which is not scaled": matrix.astype(np.uint8),
        "columns": matrix.tocsc(),
        "coordinates": matrix.tocoo(),
        "tensor": csr_inputs(matrix, "X"),
        "tensor, int64": torch.from_numpy(matrix.toarray()).double().to_sparse_csr(),
        "tensor, bfloat16": torch.from_numpy(matrix.toarray()).bfloat16().to_sparse_csr(),
    }


@pytest.mark.parametrize("form", list(forms()))
def test_every_form_is_the_same_matrix(form: str) -> None:
    matrix, _ = counts()
    given = forms()[form]
    before = (
        [part.copy() for part in (given.data, given.indices)]
        if hasattr(given, "indices") and not isinstance(given, Tensor)
        else []
    )
    inputs = csr_inputs(given, "X")
    assert torch.equal(inputs.to_dense(), torch.from_numpy(matrix.toarray()))
    assert (inputs.dtype, inputs.col_indices().dtype) == (torch.float32, torch.int32)
    for one, other in zip(before, (getattr(given, "data", None), getattr(given, "indices", None)), strict=False):
        np.testing.assert_array_equal(one, other)


def test_a_matrix_in_order_is_not_copied() -> None:
    matrix, _ = counts()
    inputs = csr_inputs(matrix, "X")
    assert inputs.values().data_ptr() == matrix.data.ctypes.data
    assert inputs.col_indices().data_ptr() == matrix.indices.ctypes.data


def broken(**parts: np.ndarray) -> scipy.sparse.csr_matrix:
    matrix = counts()[0].copy()
    for name, value in parts.items():
        setattr(matrix, name, value)
    return matrix


@pytest.mark.parametrize(
    ("matrix", "error", "sentence"),
    [
        (scipy.sparse.csr_matrix((0, 5)), ValueError, r"X must be of shape \[N, D\] with at least one sample and one"),
        (scipy.sparse.csr_matrix((5, 0)), ValueError, r"X must be of shape \[N, D\] .* got \(5, 0\)"),
        (counts()[0].astype(np.complex64), TypeError, "X must be numbers, got a sparse matrix of complex64"),
        (broken(indices=np.full_like(counts()[0].indices, INPUTS)), ValueError, "X must be a sound CSR matrix"),
        (broken(indptr=counts()[0].indptr[::-1].copy()), ValueError, "X must be a sound CSR matrix"),
    ],
)
def test_what_is_no_such_matrix_ends_in_a_sentence(matrix: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        csr_inputs(matrix, "X")


def test_a_matrix_of_other_columns_than_the_networks_take_ends_in_a_sentence() -> None:
    matrix, labels = counts()
    with pytest.raises(ValueError, match="networks do not take the training inputs of shape"):
        train(matrix[:, :-1], labels)
    with pytest.raises(ValueError, match="train_data must have one label for each of its 199 inputs"):
        train(matrix[:-1], labels)


def test_numbers_that_are_not_finite_are_warned_of_as_in_dense_inputs() -> None:
    matrix = counts()[0].copy()
    matrix.data[matrix.indptr[7]] = np.nan
    assert input_warnings("X", csr_inputs(matrix, "X")) == input_warnings("X", torch.from_numpy(matrix.toarray()))
    assert "X: a number in sample 7 is not finite" in input_warnings("X", csr_inputs(matrix, "X"))[0]
    large = input_warnings("X", csr_inputs(100 * counts()[0], "X"))
    assert len(large) == 1
    assert "give each feature mean 0" in large[0]


def sparse_run(output: Path | None, *, resume: bool = False, **observers: Any) -> Run:
    matrix, labels = counts()
    data = Samples(csr_inputs(matrix, "X"), torch.from_numpy(labels))
    sets = {"test": data, "val": data}
    return fit(settings(epochs=6), network, data, **sets, output=output, resume=resume, checkpoint_every=2, **observers)


@pytest.mark.usefixtures("dense_products")
def test_an_epoch_ends_with_the_updates_of_all_columns_made() -> None:
    matrix, labels = counts()

    def trained(inputs: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        state = training((network(), network()), Samples(inputs, torch.from_numpy(labels)), lr=1e-3)
        train_epochs(state, 1, 1)
        return [parameter.detach().clone() for parameter in parameters(state.networks)]

    sparse, dense = trained(csr_inputs(matrix, "X")), trained(torch.from_numpy(matrix.toarray()))
    for one, other in zip(sparse, dense, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("curves_at_once")
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Also one that had checkpoints in the middle of its epochs, for which deferred updates are made."""
    with pytest.raises(Killed):
        sparse_run(tmp_path, on_step=killed_at(3, 5))
    resumed = sparse_run(tmp_path, resume=True)
    matrix, labels = counts()
    data = Samples(csr_inputs(matrix, "X"), torch.from_numpy(labels))
    whole = fit(settings(epochs=6), network, data, test=data, val=data)
    assert_same(resumed, whole, tmp_path)


def test_a_checkpoint_has_the_weights_of_all_columns(tmp_path: Path) -> None:
    run = train(*counts(), output=tmp_path)
    loaded = jf.load_run(tmp_path, networks=network)
    for one, other in zip(parameters(loaded.networks), parameters(run.networks), strict=True):
        assert torch.equal(one, other)


def test_the_classifier_fits_and_predicts_sparse_as_dense() -> None:
    matrix, labels = counts()
    for build in ("mlp", lambda shape, classes: with_dropout()):
        asked = {"network": build, "epochs": 12, "batch_size": 16, "random_state": 0, "device": "cpu"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the short ramp
            sparse, dense = (jf.JoCoRClassifier(**asked).fit(X, labels) for X in (matrix, matrix.toarray()))
        expected = dense.predict_proba(matrix.toarray())
        for X in (matrix, matrix.astype(np.float64).tocsc(), matrix.toarray()):
            np.testing.assert_allclose(sparse.predict_proba(X), expected, atol=1e-5)
        assert sparse.score(matrix, labels) > 0.8
        assert all(p.is_contiguous() for module in sparse.networks_ for p in module.parameters())


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    assert main(["predict", *map(str, arguments)]) == code
    return capsys.readouterr()


def save(folder: Path, matrix: Any, labels: np.ndarray) -> str:
    scipy.sparse.save_npz(folder / "inputs.npz", matrix)
    np.savez(folder / "set.npz", x_train="inputs.npz", y_train=labels, x_test="inputs.npz", y_test=labels)
    return f"npz:{folder / 'set.npz'}"


def test_an_npz_data_set_may_name_sparse_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix, labels = counts()
    name, output = save(tmp_path, matrix, labels), tmp_path / "run"
    dataset = load_dataset(name)
    assert torch.equal(dataset.train.inputs.to_dense(), torch.from_numpy(matrix.toarray()))
    assert dataset.input_shape == (INPUTS,)
    options = ["--noise=symmetric", "--noise-rate=0.2", "--val-fraction=0.2", "--epochs=3", "--batch-size=16"]
    assert main(["train", f"--dataset={name}", f"--output={output}", "--device=cpu", *options]) == 0
    capsys.readouterr()
    np.save(tmp_path / "dense.npy", matrix.toarray())
    sparse, expected = (predicted(capsys, output, tmp_path / file)[0] for file in ("inputs.npz", "dense.npy"))
    assert sparse.replace("inputs.npz", "dense.npy") == expected
    assert len(sparse.splitlines()) == 1 + len(labels)
    assert main(["audit", str(output)]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(
            (
                lambda matrix, form=form: matrix.asformat(form),
                f"inputs.npz must hold a CSR matrix, got one in {form} form: save matrix.tocsr()",
            )
            for form in ("csc", "coo", "bsr")
        ),
        (lambda matrix: matrix * np.inf, "inputs.npz must be finite in float32"),
        (lambda matrix: matrix[:-1], "as many train labels as images"),
    ],
)
def test_a_sparse_file_that_will_not_do_ends_in_a_sentence(change: Any, sentence: str, tmp_path: Path) -> None:
    matrix, labels = counts()
    with np.errstate(invalid="ignore"), pytest.raises(DataError) as caught:
        load_dataset(save(tmp_path, change(matrix), labels))
    assert sentence in str(caught.value)


def test_a_file_that_is_absent_or_dense_ends_in_a_sentence(tmp_path: Path) -> None:
    labels = counts()[1]
    np.savez(tmp_path / "set.npz", x_train="other.npz", y_train=labels)
    with pytest.raises(DataError, match=r"other\.npz does not exist"):
        load_dataset(f"npz:{tmp_path / 'set.npz'}")
    np.savez(tmp_path / "other.npz", dense=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"other\.npz has no array 'format', only dense"):
        load_dataset(f"npz:{tmp_path / 'set.npz'}")


def test_a_matrix_of_other_columns_cannot_be_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix, labels = counts()
    output = tmp_path / "run"
    options = ["--labels-are-clean", "--epochs=1", f"--output={output}", "--device=cpu"]
    assert main(["train", f"--dataset={save(tmp_path, matrix, labels)}", *options]) == 0
    scipy.sparse.save_npz(tmp_path / "few.npz", matrix[:, :7])
    capsys.readouterr()
    said = predicted(capsys, output, tmp_path / "few.npz", code=1)[1]
    assert "few.npz holds [200, 7] of float32, these networks take arrays [n, 90] of float32" in " ".join(said.split())
