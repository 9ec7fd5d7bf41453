"""Pages for people on the HTTP port: the dashboard, and those of the program."""
