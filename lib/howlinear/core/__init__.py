"""R²_lin itself, from moments alone: no model, no text, no file. Explained in notebook 02."""
