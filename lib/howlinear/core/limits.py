"""What R²_lin tends to with ever more rows, from few: between the rows of the fit and the held-out ones.

Least squares on n rows follows these rows too closely. To first order in 1 / n it explains as much too much of them as
it explains too little of other rows (Stone 1977, "An asymptotic equivalence of choice of model by cross-validation and
Akaike's criterion"; Takeuchi's information criterion). With u the unexplained share, and v a constant of the text:

    in sample  u_n ≈ u (1 − v / n),    held out  u'_n ≈ u (1 + v / n).

Independent Gaussian rows have v = p, the numbers that a feature's map has, and then the held-out share is
u / (1 − p / n), so that √(u_n u'_n) is u itself. Rows of one document resemble each other, and some rows weigh more
than others: both make v larger, often many times, but they move both sides equally, in opposite directions. So

    R²_∞ = 1 − √(u_n u'_n)

needs no estimate of v, and no second number of rows. What it leaves is of second order, (v / n)²: it is refused where
v / n, the `optimism`, is above `MOST_OPTIMISM`.
"""

MOST_OPTIMISM = 0.5
"""Where v / n is above this, rows are too few to say what R² tends to: the map has a number for every two of the rows
that count."""

ROUNDING = 1e-12
"""An unexplained share below this is rounding, on either side."""


def limit(in_sample: float, held_out: float) -> float:
    """R² in the limit of ever more rows, R²_∞ = 1 − √(u u'); R² is 1 − u on the rows of the fit, 1 − u' on others."""
    of_fit = _unexplained(in_sample)
    of_others = _unexplained(held_out)
    return 1 - (of_fit * of_others) ** 0.5


def optimism(in_sample: float, held_out: float) -> float:
    """How far the fit follows its own rows: v / n = 1 − √(u / u'), 0 with ever more rows and p / n of Gaussian ones."""
    of_fit = _unexplained(in_sample)
    of_others = _unexplained(held_out)
    if of_others <= ROUNDING:  # all is explained, on both sides
        return 0.0
    return 1 - (of_fit / of_others) ** 0.5


def _unexplained(r2: float) -> float:
    """1 − R², not below 0 by rounding."""
    return max(0.0, 1 - r2)


def enough(in_sample: float, held_out: float) -> bool:
    """Whether the rows are enough to say what R² tends to."""
    return optimism(in_sample, held_out) <= MOST_OPTIMISM
