"""`python -m howlinear` is `howlinear`."""

from howlinear.cli import main

main()
