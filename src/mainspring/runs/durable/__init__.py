"""Durable runs: their records, how they are written, started, recovered and operated."""
