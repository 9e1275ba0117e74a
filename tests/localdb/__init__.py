"""The promises of the private PostgreSQL. Each test has a cluster of its own and reaches it through real processes."""
