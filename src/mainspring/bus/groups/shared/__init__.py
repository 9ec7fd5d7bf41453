"""Groups whose members are connected to several nodes of one log."""
