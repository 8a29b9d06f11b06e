"""Which tokens make a block look linear: massive rows, what R²_lin is without them, what maps cost. Notebook 12."""
