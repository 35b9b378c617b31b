"""Files that are written whole or not at all, checked when read, and safe to load from strangers.

A file holds tensors and plain Python values only, and the checksum of all of them.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import secrets
import warnings
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

Content = dict[str, Any]

PARTIAL = ".partial"
"""Ending of a file that is being written."""

_CHECKSUM = "checksum"
_SCALARS = (str, int, float, bool, type(None))
# NumPy's booleans, integers, floats and strings; not its dates, bytes and complex numbers
_NUMPY_KINDS = "biufU"
# torch's safe loader reads no longer ints
_MAX_INT_BITS = 2039


class DamagedFile(ValueError):  # noqa: N818 - says what the file is, reads well in `except`
    """A file that is damaged, cut short, altered, or was never written by this package."""


def save_file(path: str | os.PathLike[str], content: Content) -> None:
    """Write `content` to `path` in one step: a failure leaves the old file as it was.

    Tensors are stored detached and on the CPU, NumPy scalars as Python ones, subclasses of dict,
    list and tuple as these.

    Args:
        path: the file; its folder exists.
        content: nested dicts (keys are strings), lists and tuples of tensors, str, int, float,
            bool and None. The key ``"checksum"`` is taken.

    Raises:
        TypeError: where `content` holds anything else; nothing is written.
    """
    replace_file(Path(path), serialise(content))


def load_file(path: str | os.PathLike[str]) -> Content:
    """Return the content of a file that `save_file` wrote, its tensors on the CPU.

    Raises:
        DamagedFile: where the file is not exactly what was written; no code in it is run.
    """
    with Path(path).open("rb") as file:
        try:
            return _verify(_read(file))
        except Exception as error:  # a damaged file makes the loader fail in every possible way
            message = f"{os.fspath(path)} is damaged or not a file of populora_envs: "
            raise DamagedFile(message + _reason(error)) from error


def load_kind(path: str | os.PathLike[str], kind: str) -> Content:
    """Return the content of a file that says it holds a `kind`; ValueError where it holds another."""
    content = load_file(path)
    if content.get("kind") != kind:
        message = f"{os.fspath(path)} holds {content.get('kind', 'something else')}, not one {kind}"
        raise ValueError(message)
    return content


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 to `path` in one step: a failure leaves the old file as it was."""
    replace_file(Path(path), text.encode())


def replace_file(path: Path, data: bytes | memoryview, keep_old_as: Path | None = None) -> None:
    """Put a file with `data` in the place of `path`, whose old file may get another name."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep_old_as is not None and path.exists():
            path.replace(keep_old_as)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def serialise(content: Content) -> memoryview:
    """Return the bytes of a file; in memory, for torch turns a full disk into a RuntimeError."""
    plain = plain_content(content)
    if _CHECKSUM in plain:
        message = f"content has the key {_CHECKSUM!r}, which the file keeps for itself: rename it"
        raise ValueError(message)
    buffer = io.BytesIO()
    torch.save(plain | {_CHECKSUM: _checksum(plain)}, buffer)
    return buffer.getbuffer()


def _read(file: IO[bytes]) -> Any:
    with warnings.catch_warnings():
        # torch warns of pickles that it then refuses
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)


def _verify(content: Any) -> Content:
    """Return loaded content without its checksum; ValueError where that does not fit."""
    if not isinstance(content, dict) or _CHECKSUM not in content:
        message = "it has no checksum"
        raise ValueError(message)
    checksum = content.pop(_CHECKSUM)
    if checksum != _checksum(content):
        message = "its checksum does not fit its content"
        raise ValueError(message)
    return content


def _reason(error: Exception) -> str:
    # torch's own text advises to load the file unsafely
    if isinstance(error, pickle.UnpicklingError):
        return "its pickled part is broken or holds more than tensors and plain values"
    first_line = str(error).partition("\n")[0]
    if type(error) is ValueError:
        return first_line
    return f"{type(error).__name__}: {first_line}".rstrip(": ")


def plain_content(value: Any, where: str = "content") -> Any:
    """Return a copy of nested plain values as they go into a file; TypeError names the rest."""
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)
    if isinstance(value, dict):
        return {
            _plain_key(key, where): plain_content(item, f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [plain_content(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return _plain_scalar(value, where)


def _plain_key(key: Any, where: str) -> str:
    if type(key) is str:
        return key
    message = f"{where} has the key {key!r} of type {_name(key)}: keys must be strings"
    raise TypeError(message)


def _plain_tensor(tensor: Tensor, where: str) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        message = f"{where} is a sparse, quantized or meta tensor: pass a dense one"
        raise TypeError(message)
    stored = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if type(stored) is not Tensor:
        raise _not_plain(stored, where)
    # a view would take the whole storage behind it into the file
    is_view = stored.untyped_storage().nbytes() != stored.nbytes
    return stored.clone() if is_view else stored


def _plain_scalar(value: Any, where: str) -> Any:
    is_numpy = isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS
    plain = value.item() if is_numpy else value
    if type(plain) not in _SCALARS:
        raise _not_plain(value, where)
    if type(plain) is int and plain.bit_length() > _MAX_INT_BITS:
        message = f"{where} is an int of {plain.bit_length()} bits, above {_MAX_INT_BITS}"
        raise ValueError(message)
    return plain


def _not_plain(value: Any, where: str) -> TypeError:
    return TypeError(
        f"{where} is a {_name(value)}: only tensors, str, int, float, bool, None and dicts, lists "
        f"and tuples of these can be saved"
    )


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _checksum(content: Content) -> str:
    digest = hashlib.sha256()
    _add(content, digest.update)
    return digest.hexdigest()


def _add(value: Any, update: Callable[[Any], None]) -> None:
    """Feed nested values to a hash, each after its type and size, so that no two look alike."""
    if isinstance(value, Tensor):
        update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        update(value.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, (dict, list, tuple)):
        update(f"{type(value).__name__} {len(value)} ".encode())
        # the order of a dict counts
        for item in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            _add(item, update)
    else:
        data = str(value).encode("utf-8", "surrogatepass")
        update(f"{type(value).__name__} {len(data)} ".encode() + data)
