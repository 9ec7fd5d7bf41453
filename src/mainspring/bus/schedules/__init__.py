"""Delayed events and schedules: what is published later, and again and again."""
