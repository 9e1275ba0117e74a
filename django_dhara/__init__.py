"""A distributed task queue for Django: PostgreSQL is the only queue and the only source of truth."""

__version__ = "0.1.0"
