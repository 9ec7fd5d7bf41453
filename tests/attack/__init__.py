"""A node under attack: what each attempt costs it, and whether others are served meanwhile. One test per finding."""
