"""Would a trained linear layer have found the ceiling? Explained in notebook 07."""
