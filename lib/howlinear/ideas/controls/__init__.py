"""Learned, or architectural? Explained in notebook 08."""
