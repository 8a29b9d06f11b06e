"""What was read of a text, what was left out of it, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LeftOut:
    """Something of a text that no row holds.

    Attributes:
        count: how much of it.
        unit: what is counted: `lines`, `documents` or `tokens`.
        why: the reason, to be read after these two, as in "3 documents equal to others".
    """

    count: int
    unit: str
    why: str

    def __str__(self) -> str:
        """As in `1 document equal to another`."""
        unit = self.unit.removesuffix("s") if self.count == 1 else self.unit
        return f"{self.count:,} {unit} {self.why}"


@dataclass(frozen=True)
class Text:
    """A text that was read whole, before a tokenizer sees it.

    Attributes:
        documents: its documents, in their order.
        source: where it was read: a path, an address, a data set.
        sha256: of the bytes that were read; of a data set, of its rows as UTF-8 with NUL bytes between them, and of
            WikiText as the file that its rows are the lines of.
        left_out: what is in no document.
    """

    documents: list[str]
    source: str
    sha256: str
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class Reading:
    """What rows were read from.

    Attributes:
        source: where the text was read.
        sha256: of the text, as in `Text`; None of what is read only as far as it is needed.
        documents: how many the rows hold something of.
        left_out: what no row holds, and why; nothing of it is counted twice.
    """

    source: str
    sha256: str | None
    documents: int
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        """One line for people."""
        documents = "1 document" if self.documents == 1 else f"{self.documents:,} documents"
        left_out = ", ".join(str(part) for part in self.left_out) or "nothing"
        return f"{documents} of {self.source}; left out: {left_out}"

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Reading:
        """The reading that `dataclasses.asdict` made `content` of."""
        left_out = tuple(LeftOut(**part) for part in content["left_out"])
        return cls(content["source"], content["sha256"], content["documents"], left_out)
