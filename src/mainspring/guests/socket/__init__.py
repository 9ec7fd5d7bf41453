"""Guests in other processes: the loop socket."""
