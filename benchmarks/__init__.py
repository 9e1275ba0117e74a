"""The benchmark suite: ``python -m benchmarks W1 [W2 ...]``."""
