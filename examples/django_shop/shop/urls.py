from django.contrib import admin
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders", csrf_exempt(views.orders)),
    path("orders/<int:number>", views.order),
    path("count", views.count),
]
