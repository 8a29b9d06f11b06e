"""The limit of R²_lin for ever more rows, estimated from few: it lies between R² on train and on held-out rows.

Least squares overfits its n rows. To first order in 1 / n it explains too much of them by as much as it explains too
little of other rows (Stone 1977, "An asymptotic equivalence of choice of model by cross-validation and Akaike's
criterion"; Takeuchi's information criterion). With u the unexplained share in the limit and v a constant of the text:

    in sample  u_n ≈ u (1 − v / n),    held out  u'_n ≈ u (1 + v / n).

Independent Gaussian rows have v = p, the number of parameters per output feature, and then the held-out share is
u / (1 − p / n), so that √(u_n u'_n) is u itself. Rows of one document resemble each other, and some rows weigh more
than others: both make v larger, often many times, but they move both sides equally, in opposite directions. So

    R²_∞ = 1 − √(u_n u'_n)

needs neither an estimate of v nor a second number of rows. The remaining error is of second order, (v / n)²: no limit
is given where v / n, the `optimism`, is above `MOST_OPTIMISM`.
"""

MOST_OPTIMISM = 0.5
"""Above this v / n, rows are too few to estimate the limit: the map has one parameter for every two effective rows."""

ROUNDING = 1e-12
"""An unexplained share below this is rounding, on train and held-out rows alike."""


def limit(in_sample: float, held_out: float) -> float:
    """Estimate R² for ever more rows, R²_∞ = 1 − √(u u'); R² is 1 − u on the train rows and 1 − u' on held-out rows."""
    # u = 1 − R², not below 0 by rounding
    return 1 - (max(0.0, 1 - in_sample) * max(0.0, 1 - held_out)) ** 0.5


def optimism(in_sample: float, held_out: float) -> float:
    """Compute how far the fit follows its own rows, v / n = 1 − √(u / u'): p / n for Gaussian rows, 0 in the limit."""
    if 1 - held_out <= ROUNDING:  # all is explained, on both sides
        return 0.0
    return 1 - (max(0.0, 1 - in_sample) / (1 - held_out)) ** 0.5


def limit_or_nan(in_sample: float, held_out: float) -> float:
    """Estimate the limit of R², NaN if the rows are not `enough`."""
    return limit(in_sample, held_out) if enough(in_sample, held_out) else float("nan")


def enough(in_sample: float, held_out: float) -> bool:
    """Return whether there are enough rows to estimate the limit of R²."""
    return optimism(in_sample, held_out) <= MOST_OPTIMISM
