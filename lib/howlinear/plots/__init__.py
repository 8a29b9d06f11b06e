"""Figures in one style, one module per notebook; tidy tables in, figures out."""

from howlinear.plots.ceilings import profile

__all__ = ["profile"]
