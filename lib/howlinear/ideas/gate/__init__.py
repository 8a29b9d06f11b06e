"""Which tokens take a line and which keep the block: a gate of d + 1 numbers in closed form, and what it costs."""
