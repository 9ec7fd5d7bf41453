"""What a guest may use: the loop, the clock and machine, topics in memory."""
