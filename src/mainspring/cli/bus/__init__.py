"""Commands about topics, events, groups and what lies around the bus."""
