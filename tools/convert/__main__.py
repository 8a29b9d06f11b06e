"""`python -m tools.convert STEM…`: convert what these notebooks have on record."""

import sys

from tools.convert import main

main(*sys.argv[1:])
