"""The instrument: capture, perplexity, swap costs, and `measure`, which joins them. Explained in notebooks 01, 02."""
