"""Publishing: from a request to its durable acknowledgement."""
