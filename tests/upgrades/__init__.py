"""Upgrades: `dhara_migrate`, and this version beside the one before it."""
