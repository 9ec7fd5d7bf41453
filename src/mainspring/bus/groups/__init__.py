"""Groups: members, leases, positions, deliveries and dead letters."""
