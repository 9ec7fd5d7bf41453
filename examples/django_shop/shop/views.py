"""The web side: rows and events in one transaction, and questions to the node."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from mainspring.contrib.django import client, publish
from shop.models import Order


@transaction.atomic
def orders(request: HttpRequest) -> JsonResponse:
    """Place an order. When something fails here, neither the row nor the event has ever been."""
    given = json.loads(request.body)
    order = Order.objects.create(customer=given["customer"], sku=given["sku"])
    publish("orders", {"order": order.id}, key=given["customer"])
    if given["sku"] == "gone":
        raise ValueError("sold out")
    return JsonResponse({"order": order.id}, status=201)


def order(request: HttpRequest, number: int) -> JsonResponse:
    return JsonResponse({"state": Order.objects.get(id=number).state})


def count(request: HttpRequest) -> JsonResponse:
    """Asks the node: one client for the whole process, which opens itself."""
    return JsonResponse({"orders": client().query("Shop.Count")})
