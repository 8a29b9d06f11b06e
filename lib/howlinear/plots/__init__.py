"""Figures: one style, and one module a notebook; tidy tables in, figures out."""

from howlinear.plots.ceilings import profile

__all__ = ["profile"]
