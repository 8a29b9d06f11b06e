"""The sufficient statistics of every linear question: n, means and centred second moments.

Rows stream through once and are forgotten; maps, R², reduced-rank curves, transfer and error bars all
follow from what stays. Chunks are centred on their own mean and merged with the update of Chan, Golub &
LeVeque (1983, "Algorithms for computing the sample variance"), in float64, so offsets never cancel.
"""

from __future__ import annotations

import threading

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howlinear.errors import InputError

_PANELS = 4  # XᵀX is symmetric: four column panels compute 10/16 of it and mirror the rest


class Moments:
    """Moments of (input, output) rows.

    Attributes:
        n: number of rows seen.
        mean_x: input means, shape (d_in,).
        mean_y: output means, shape (d_out,).
        sxx: centred Σ (x − x̄)(x − x̄)ᵀ, shape (d_in, d_in).
        sxy: centred Σ (x − x̄)(y − ȳ)ᵀ, shape (d_in, d_out).
        syy: centred Σ (y − ȳ)² per feature, shape (d_out,).
    """

    def __init__(self, d_in: int, d_out: int = 0, device: torch.device | str | None = None):
        """Start from no rows; `d_out=0` keeps moments of inputs alone."""
        if d_in < 1 or d_out < 0:
            raise InputError(f"moments need d_in ≥ 1 and d_out ≥ 0, got {d_in} and {d_out}")

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.n = 0
        self.mean_x, self.mean_y = zeros(d_in), zeros(d_out)
        self.sxx, self.sxy, self.syy = zeros(d_in, d_in), zeros(d_in, d_out), zeros(d_out)

    @classmethod
    def several(cls, count: int, d_in: int, d_out: int = 0, device: torch.device | str | None = None) -> list[Moments]:
        """`count` empty moments in one allocation: what stays does not lie among what comes and goes."""
        one = cls(d_in, d_out, device).tensors()
        many = {name: tensor.repeat(count, *[1] * tensor.dim()) for name, tensor in one.items()}
        return [cls.from_tensors({name: tensor[i] for name, tensor in many.items()}) for i in range(count)]

    @property
    def d_in(self) -> int:
        """Input width."""
        return self.mean_x.shape[0]

    @property
    def d_out(self) -> int:
        """Output width."""
        return self.mean_y.shape[0]

    def update(
        self,
        x: Float[Tensor, "n d_in"],
        y: Float[Tensor, "n d_out"] | None = None,
        outputs: Moments | None = None,
    ) -> Moments:
        """Add a chunk of rows.

        Args:
            x: inputs, shape (n, d_in).
            y: outputs, shape (n, d_out); left out where `d_out` is 0.
            outputs: moments of the outputs alone (`d_in` is this one's `d_out`) that get the same rows.

        Returns:
            Itself.

        Raises:
            InputError: shapes disagree, or a value is not finite; nothing is added then. No device but the CPU is
                waited for: there such a value gets in and stays, and `checked` tells.
        """
        y = x[:, :0] if y is None else y
        if x.shape[1:] != (self.d_in,) or y.shape != (x.shape[0], self.d_out):
            raise InputError(
                f"rows of shape {tuple(x.shape)} and {tuple(y.shape)} do not fit moments of ({self.d_in}, {self.d_out})"
            )
        if outputs is not None and (outputs.d_in, outputs.d_out) != (self.d_out, 0):
            raise InputError(f"{outputs} cannot hold {self.d_out} outputs alone")
        if not len(x):
            return self
        mean_y, y64 = _centred(y, _ROOM("y", y))
        syy = torch.mul(y64, y64, out=_ROOM("x", y)).sum(0)
        mean_x, x64 = _centred(x, _ROOM("x", x))
        if _at_once(x):
            sums = [mean_x, syy]
            if x.dtype == torch.float64:  # of narrower rows no square overflows, so the mean tells all
                sums.append(torch.linalg.vecdot(x64, x64, dim=0))
            if not torch.cat(sums).isfinite().all():
                raise InputError(f"NaN or infinity among {len(x)} rows")
        self._shift(len(x), mean_x, mean_y, syy)
        _add_gram(self.sxx, x64)
        self.sxy.addmm_(x64.T, y64)
        if outputs is not None:
            outputs._shift(len(y), mean_y, outputs.mean_y, outputs.syy)
            _add_gram(outputs.sxx, y64)
        return self

    @property
    def finite(self) -> Bool[Tensor, ""]:
        """Whether every row was finite, shape (), on the moments' own device: to ask does not wait, to read does.

        A NaN, an infinity or a square that overflows never leaves a mean or a sum of squares again.
        """
        return torch.cat([self.mean_x, self.mean_y, self.sxx.diagonal(), self.syy]).isfinite().all()

    def checked(self) -> Moments:
        """Itself, if every row was finite.

        Raises:
            InputError: some row was not.
        """
        if not self.finite:
            raise InputError(f"NaN or infinity among {self.n} rows")
        return self

    def __add__(self, other: Moments) -> Moments:
        """Moments of both sets of rows; neither operand changes."""
        if (self.d_in, self.d_out) != (other.d_in, other.d_out):
            raise InputError(
                f"cannot add moments of ({self.d_in}, {self.d_out}) and ({other.d_in}, {other.d_out}) features"
            )
        return self.copy()._merge(other)

    def __radd__(self, other: int) -> Moments:
        """Let `sum` start from its 0."""
        return self.copy() if other == 0 else NotImplemented

    def copy(self) -> Moments:
        """An independent copy."""
        return Moments.from_tensors({name: tensor.clone() for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str) -> Moments:
        """The same moments on another device."""
        return Moments.from_tensors({name: tensor.to(device, copy=True) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Named tensors to save; `from_tensors` is the way back."""
        named = {name: getattr(self, name) for name in ("mean_x", "mean_y", "sxx", "sxy", "syy")}
        return named | {"n": torch.tensor([self.n])}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Moments:
        """Rebuild what `tensors` named."""
        moments = object.__new__(cls)
        for name, tensor in tensors.items():
            setattr(moments, name, int(tensor.item()) if name == "n" else tensor)
        return moments

    def _merge(self, other: Moments) -> Moments:
        if other.n:
            self._shift(other.n, other.mean_x, other.mean_y, other.syy)
            self.sxx += other.sxx
            self.sxy += other.sxy
        return self

    def _shift(self, count: int, mean_x: Tensor, mean_y: Tensor, syy: Tensor) -> None:
        """Chan's update for `count` rows less their own products: what the distance of the two means adds, and Syy."""
        n = self.n + count
        between = self.n * count / n
        dx, dy = mean_x - self.mean_x, mean_y - self.mean_y
        if self.n:
            self.sxx.addr_(dx, dx, alpha=between)
            self.sxy.addr_(dx, dy, alpha=between)
        self.syy += syy + between * dy.square()
        self.mean_x += dx * (count / n)
        self.mean_y += dy * (count / n)
        self.n = n

    def __repr__(self) -> str:
        """One line for people."""
        return f"Moments(n={self.n}, d_in={self.d_in}, d_out={self.d_out})"


def effective_rank(covariance: Float[Tensor, "d d"]) -> float:
    """Participation ratio (Σλ)² / Σλ² of a covariance matrix: 1 for one direction, d for a ball."""
    return float(covariance.trace().square() / covariance.square().sum())


def _at_once(rows: Tensor) -> bool:
    """Whether a number can be read right away; any other device would have to finish its work first."""
    return rows.device.type == "cpu"


class _Room(threading.local):
    """Room for a chunk in float64, kept for the next one: to fault in fresh pages costs as much as a product."""

    most = 2**23  # numbers: what a larger chunk needs is given back

    def __init__(self):
        self.kept: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: Tensor) -> Tensor:
        """A float64 tensor of the shape of `rows`, with whatever it holds."""
        if rows.device.type != "cpu" or rows.numel() > self.most:  # CUDA's allocator keeps its own
            return torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        if name not in self.kept or self.kept[name].numel() < rows.numel():
            with torch.inference_mode(False):  # whoever asks next may be outside it
                self.kept[name] = torch.empty(rows.numel(), dtype=torch.float64)
        return self.kept[name][: rows.numel()].view(rows.shape)


_ROOM = _Room()


def _centred(rows: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Mean in float64, and the rows less it, in `room`."""
    room.copy_(rows.detach())
    mean = room.mean(0)
    return mean, room.sub_(mean)


def _add_gram(gram: Float[Tensor, "d d"], x: Float[Tensor, "n d"]) -> None:
    """Add XᵀX in place: the upper panels, then their mirror image."""
    d = x.shape[1]
    if d < 256:  # too small for the panels to pay
        gram.addmm_(x.T, x)
        return
    width = -(-d // _PANELS)
    for start in range(0, d, width):
        stop = start + width
        gram[start:stop, start:].addmm_(x[:, start:stop].T, x[:, start:])
        gram[stop:, start:stop] = gram[start:stop, stop:].T
