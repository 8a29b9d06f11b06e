"""Learned, or architectural? Told by notebook 08."""
