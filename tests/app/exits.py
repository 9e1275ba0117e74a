"""A module whose import ends the process, if it is let."""

import sys

sys.stderr.write("tests.app.exits is imported\n")
sys.exit(5)
