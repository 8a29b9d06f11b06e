"""The site: gather notebooks, solutions, figures and reference, and build pages from them with Sphinx."""
