"""Filled by its part."""
