"""A shop: orders in Django's database, what follows from them in Mainspring."""
