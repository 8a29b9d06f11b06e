"""Which blocks can be replaced, at what price, and how small a model gets. Explained in notebooks 06 and 14."""
