"""Publishing: from a request to its durable acknowledgement, in two steps that every face of the bus takes.

admission       `accept` decides: rights, names, payloads, schemas, rates, partitions
publisher       `submit` writes accepted events to the log and reports through a callback
rate_limit      how many events a connection or a topic takes
"""
