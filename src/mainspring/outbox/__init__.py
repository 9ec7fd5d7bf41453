"""Outbox and inbox: events and effects in one transaction with the program's own rows."""
