"""Training: the loop, the embedded models, the twins of notebook 08, and stand-ins for the paper's models."""
