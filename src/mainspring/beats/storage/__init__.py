"""How a line of beats is stored."""
