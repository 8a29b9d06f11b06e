"""The site: gathering notebooks, solutions, figures and reference, and having Sphinx make pages of them."""
