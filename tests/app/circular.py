"""One half of a circle of imports."""

from tests.app.circular_too import other

one = other
