"""`manage.py mainspring`."""
