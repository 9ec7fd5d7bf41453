"""Benchmarks: ratios to peers measured in the same run, with the conditions beside them."""
