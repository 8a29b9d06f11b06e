"""Would a trained linear layer have found the ceiling? Told by notebook 07."""
