"""Packages that only some parts want: an error that says what installs them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXTRAS = {
    "imageio": "video",
    "imageio_ffmpeg": "video",
    "matplotlib": "plots",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""Package -> the extra of this project that brings it; others are named by themselves."""


@contextmanager
def wanted(package: str, what: str) -> Iterator[None]:
    """Import an optional package in the block.

    Args:
        package: what is imported.
        what: what wants it, for the message.

    Raises:
        ImportError: with what installs it.
    """
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get(package)
        install = f'"populora-envs[{extra}]"' if extra else package
        message = f"{what} wants {package}, which is not installed: pip install {install}"
        raise ImportError(message) from error
