"""One line of beats on a log that several nodes share: one leads, the others follow."""
