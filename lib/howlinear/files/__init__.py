"""Files: the layout of the project, atomic writes, and results as tables and JSON."""
