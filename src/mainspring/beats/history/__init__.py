"""What can be asked of beats that happened: reading, differences, replay, forks."""
