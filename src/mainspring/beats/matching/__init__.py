"""From a signal to the enzymes that run for it, in their order."""
