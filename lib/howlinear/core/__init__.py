"""R²_lin itself, from moments alone: no model, no text, no file. Told by notebook 02."""
