"""`python -m howlinear` is `howlinear`."""

from howlinear.app.cli import main

main()
