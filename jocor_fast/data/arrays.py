"""Files of a user's: arrays in .npy, .npz and .pt, read without ever running code that a file holds."""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jocor_fast.errors import ArgumentValueError, DataError

if TYPE_CHECKING:
    import numpy as np

ARRAY_FORMS = "FILE.npy, FILE.npz:KEY or FILE.pt:KEY"
_CHECKED_AT_ONCE = 1 << 20  # bytes
_KEYS_NAMED = 20  # in a message; a network's state_dict() has hundreds


def user_path(name: str | os.PathLike[str]) -> Path:
    """Return a path with ~ expanded to the user's home; the ~name of an unknown user stays as it is."""
    return Path(os.path.expanduser(name))


def split_key(spec: str) -> tuple[str, str | None]:
    """FILE.npz:KEY or FILE.pt:KEY as file and key; no key, and any other file, as (FILE, None)."""
    match = re.fullmatch(r"(?P<file>.+\.(?:npz|pt)):(?P<key>[^:]*)", spec, flags=re.DOTALL | re.IGNORECASE)
    return (match["file"], match["key"] or None) if match else (spec, None)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turn whatever a parser says of a broken file into one sentence that names the file.

    Args:
        path: the file that is read within.
        kind: what the file should be, such as "a .npy array".

    Raises:
        DataError: the file is absent, cannot be opened, or is not what it should be.
    """
    name = os.fspath(path)
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{name} does not exist") from None
    except MemoryError:
        raise DataError(f"{name} is not {kind} that fits in memory") from None
    except OSError as error:
        within = f"{error.filename}: " if error.filename not in (None, path, name) else ""
        raise DataError(f"{name} cannot be read as {kind}: {within}{error.strerror or error}") from error
    except Exception as error:  # zipfile, zlib, pickle, NumPy and torch have an error class each, and borrow others
        raise DataError(f"{name} is not {kind}: {_reason(error)}") from error


def read_array(spec: str, argument: str, forms: str = ARRAY_FORMS, *, mapped: bool = False) -> Any:
    """Return the array in a file as `ARRAY_FORMS` has it; of a .pt file also a tensor or a list.

    Raises:
        ArgumentValueError: the argument of that name is of another form; the message names `forms`.
        DataError: the file is absent or broken, or has no such array.
    """
    file, key = split_key(os.fspath(spec))
    path = user_path(file)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return read_npy(path, mapped=mapped)
    if suffix == ".npz":
        return read_npz(path, lambda keys: [key], mapped=mapped)[0]
    if suffix == ".pt":
        return read_pt(path, key)
    raise ArgumentValueError(argument, f"must be given as {forms}, got {spec!r}")


def read_npy(path: str | os.PathLike[str], *, mapped: bool = False) -> np.ndarray:
    """Return the array of a .npy file, if `mapped` mapped into memory, to be read where it is used.

    Raises:
        DataError: it is none, or one of objects that are no numbers or strings.
    """
    import numpy as np

    with reading(path, "a .npy array"), open(path, "rb") as file:
        objects = _object_array(file, os.fspath(path), "array")
        if objects is not None:
            return objects
        array = np.load(path, mmap_mode="r", allow_pickle=False) if mapped else np.load(file, allow_pickle=False)
        if isinstance(array, np.ndarray):
            return array
        array.close()
        raise DataError(f"{os.fspath(path)} is an .npz archive, not a .npy array")


def _object_array(file: IO[bytes], where: str, name: str) -> np.ndarray | None:
    """Return the array of numbers and strings in a .npy file of Python objects; None where it is another file.

    `name` is what the user calls the array. Such a file is a pickle, of which no code is run.
    """
    from jocor_fast.data.pickled_arrays import unpickled, unwrapped

    try:
        holds_objects = _npy_header(file)[2].hasobject
    except ValueError:  # of another format
        holds_objects = False
    if not holds_objects:
        file.seek(0)
        return None
    try:
        return unwrapped(unpickled(file))
    except Exception:  # of any kind, as the content has it
        raise DataError(
            f"{where} holds Python objects, which are never loaded unless they are numbers or strings: "
            f"save {name}.astype(str) in its place"
        ) from None


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of an array, whether it is stored by columns, and its dtype; ValueError for another format."""
    import numpy as np

    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return header(file)


def read_npz(
    path: str | os.PathLike[str],
    choose: Callable[[Sequence[str]], Sequence[str | None]],
    *,
    mapped: bool = False,
) -> list[np.ndarray]:
    """Return the arrays of an .npz file that `choose` picks from their names; others are not read.

    If `mapped`, they are mapped into memory as in `read_npy`, unless the archive is compressed.

    Raises:
        DataError: it is no .npz archive, None is picked or what is not in it, or as for `read_npy`.
    """
    import numpy as np

    name = os.fspath(path)
    with reading(path, "an .npz archive"), open(path, "rb") as file:  # np.load leaves a broken archive open
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{name} is a single array, not an .npz archive")
        assert archive.zip is not None
        arrays = []
        for chosen in choose(archive.files):
            key = _named(name, "array", chosen, archive.files)
            entry = archive.zip.infolist()[archive.files.index(key)]
            with archive.zip.open(entry) as member:
                array = _object_array(member, f"{name}: {key}", key)
                if array is None and mapped and entry.compress_type == zipfile.ZIP_STORED:
                    while member.read(_CHECKED_AT_ONCE):  # to its end, where a wrong checksum is found
                        pass
                    array = _mapped(file, entry.header_offset)
            arrays.append(archive[key] if array is None else array)
        return arrays


def _mapped(file: IO[bytes], start: int) -> np.ndarray | None:
    """Return an array of an archive from the place of its entry, mapped into memory; None for one without numbers."""
    import numpy as np

    file.seek(start)
    lengths = struct.unpack("<26x2H", file.read(30))  # of the entry's name and of its extra field
    file.seek(sum(lengths), os.SEEK_CUR)
    shape, by_columns, dtype = _npy_header(file)
    if not math.prod(shape):
        return None
    return np.memmap(file.name, dtype, "r", file.tell(), shape, "F" if by_columns else "C")


def read_saved(path: str | os.PathLike[str], kind: str) -> Any:
    """What `torch.save` wrote, on the CPU; DataError as for `reading`."""
    import torch

    with reading(path, kind), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of files that it then refuses
        return torch.load(path, map_location="cpu", weights_only=True)


def read_pt(path: str | os.PathLike[str], key: str | None) -> Any:
    """The tensor, array or list under a key of a dict that `torch.save` wrote; DataError where there is none."""
    import torch

    from jocor_fast.data.pickled_arrays import STAND_INS, unwrapped

    name = os.fspath(path)
    stand_ins: list[Any] = [(stand_in, name) for name, stand_in in STAND_INS.items()]  # torch's order of the two
    with torch.serialization.safe_globals(stand_ins):
        content = read_saved(path, "a .pt file of tensors and arrays")
    if not isinstance(content, dict):
        raise DataError(f"{name} holds a {type(content).__name__}, not a dict of tensors or arrays")
    return unwrapped(content[_named(name, "entry", key, tuple(content))])


def _named(name: str, what: str, key: str | None, keys: Sequence[Any]) -> str:
    """The key; DataError where there is none, or none in the file."""
    there = ", ".join(map(str, keys[:_KEYS_NAMED])) + " …" * (len(keys) > _KEYS_NAMED) or "nothing"
    if key is None:
        raise DataError(f"{name} must be given as {name}:KEY, to say which {what} is meant; it holds {there}")
    if key not in keys:
        raise DataError(f"{name} has no {what} {key!r}, only {there}")
    return key


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if "pickle" in text or "weights_only" in text:  # NumPy's and torch's advice is to load the file all the same
        return "it holds Python objects, which are never loaded, or is of another format"
    line = text.partition("\n")[0]
    # A bare key, bytes of the file, or (RuntimeError) where in its own source torch gave up.
    if not line or isinstance(error, (LookupError, RuntimeError)) or not line.isprintable():
        return "it is damaged or of another format"
    return line
