"""Mainspring in other frameworks. Optional: nothing else imports from here.

- `django/`: a Django app
"""
