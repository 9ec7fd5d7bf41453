"""An order, as the shop keeps it."""

from django.db import models


class Order(models.Model):
    """`state` is placed, then billed."""

    customer = models.TextField()
    sku = models.TextField()
    state = models.TextField(default="placed")
