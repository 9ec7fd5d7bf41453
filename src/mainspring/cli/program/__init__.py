"""Commands about what a program brings: messages, runs, beats, guests."""
