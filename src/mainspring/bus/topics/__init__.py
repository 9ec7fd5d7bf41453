"""Topics: their settings, the ends of their partitions, and what they keep."""
