"""The instrument: capture, perplexity, swap costs, and `measure`, which joins them. Told by notebooks 01 and 02."""
