"""The other half."""

from tests.app.circular import one

other = one
