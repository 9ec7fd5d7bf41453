"""The operations of the HTTP face, one module for each kind of thing."""
