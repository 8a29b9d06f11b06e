"""Scripts that build the project's pages and run its pipeline: not part of the package, run from the project's root."""
