"""Who may do what: tokens, access lists, patterns, and headers that only the node writes."""
