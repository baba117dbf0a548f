"""Student's t and the exact binomial test, without scipy."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

_SMALLEST: Final = 1e-300
_PRECISION: Final = 1e-15
_TERMS: Final = 10_000


def student_t_cdf(t: float, df: float) -> float:
    """Return the probability of a value up to `t` with `df` degrees of freedom."""
    tail = student_t_two_sided(t, df) / 2
    return tail if t < 0 else 1 - tail


def student_t_two_sided(t: float, df: float) -> float:
    """Return the probability of a value at least as far from 0 as `t`."""
    square = df + t * t
    return _regularized_beta(df / 2, 0.5, df / square, t * t / square)


@lru_cache(maxsize=4096)
def student_t_quantile(p: float, df: float) -> float:
    """Return the value with the probability `p` below it. Requires 0 < p < 1."""
    if p < 0.5:
        return -student_t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while student_t_cdf(high, df) < p:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        if student_t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def binomial_two_sided(successes: int, trials: int) -> float:
    """Return the exact two-sided p-value of `successes` in `trials` with probability 1/2."""
    fewer = min(successes, trials - successes)
    tail = sum(math.comb(trials, k) for k in range(fewer + 1))
    return min(1.0, float(Fraction(2 * tail, 1 << trials)))


def _regularized_beta(a: float, b: float, x: float, y: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b); y is 1 - x, without rounding."""
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    # The continued fraction converges fast only below the mean.
    if x > (a + 1) / (a + b + 2):
        return 1 - _regularized_beta(b, a, y, x)
    log_front = a * math.log(x) + b * math.log(y)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the beta function by Lentz's method.

    Source: Press et al., "Numerical Recipes", section 6.4.
    """
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return fraction


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST
