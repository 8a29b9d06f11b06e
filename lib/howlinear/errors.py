"""Errors raised for unusable input; each message says what was wrong, where, and what to do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

LONGEST = 1200
"""Characters of a message: what was given may be an array or a table."""


class HowlinearError(Exception):
    """Base of every error that is about the input rather than about the code; its message is one line."""

    def __str__(self) -> str:
        message = " ".join(super().__str__().splitlines())
        return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} … {message[-LONGEST // 2 :]}"


class InputError(HowlinearError, ValueError):
    """A value that cannot be measured: rows, blocks, shapes, text, options."""


class ConstantError(InputError):
    """Outputs that do not vary, so that there is nothing to explain and R² is undefined."""


class LossError(InputError):
    """A loss or perplexity that is not finite, while R² may be defined: it needs no head."""


class SourceError(HowlinearError, OSError):
    """A model, corpus or file that cannot be read or written."""


class ProcessError(HowlinearError, ConnectionError):
    """Another process of a distributed run is gone."""


def in_one_line(error: BaseException) -> str:
    """Join the lines of another library's error message; if it is empty, return the error's type."""
    return " ".join(_message(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message, or the error's type if it is empty."""
    return (_message(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def readable(what: str, remedy: str) -> Iterator[None]:
    """Turn any error in reading a file, damaged or not there, into a `SourceError` that ends with the remedy."""
    try:
        yield
    except SourceError:
        raise  # it says already what cannot be read
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or in_one_line(error)
        raise SourceError(f"cannot read {what}: {why}; {remedy}") from error


def _message(error: BaseException) -> str:
    """Return the message of an error; that of a `KeyError` is the missing key alone."""
    return f"no {error}" if isinstance(error, KeyError) else str(error)


@contextmanager
def ending_in_one_line() -> Iterator[None]:
    """End the program on an error about the input, with one line on standard error and exit code 2."""
    try:
        yield
    except HowlinearError as error:
        print(f"howlinear: {error}", file=sys.stderr)
        sys.exit(2)
