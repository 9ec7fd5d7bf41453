"""What commands share: options, output, and how they reach a node or a log."""
