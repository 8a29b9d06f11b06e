"""Which blocks can be replaced, at what price. Told by notebook 06."""
