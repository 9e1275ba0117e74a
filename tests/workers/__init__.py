"""Tests of real worker processes, and of what they do when things break."""
