"""User interface: the command line, its tables and its pages. No lower package imports it."""
