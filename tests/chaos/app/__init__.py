"""The functions that run under faults, and what their worker writes down."""
