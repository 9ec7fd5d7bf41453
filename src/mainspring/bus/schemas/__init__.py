"""What payloads look like: versions, compatibility, validation, and old events in the shape of today."""
