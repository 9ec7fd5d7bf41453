"""Durable runs on a log that several nodes share: who owns a run, and who takes over."""
