"""Mainspring: one event runtime for Python programs."""
