"""The settings of the project; what is about Mainspring is at the end."""

import os
from pathlib import Path
from urllib.parse import urlsplit

BASE_DIR = Path(os.environ.get("SHOP_DATA", Path(__file__).parent.parent))
SECRET_KEY = "only for this example"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASE_URL = os.environ.get("DATABASE_URL", "")  # postgresql://USER:PASSWORD@HOST:PORT/NAME
if DATABASE_URL:
    place = urlsplit(DATABASE_URL)
    default = {"ENGINE": "django.db.backends.postgresql", "NAME": place.path[1:], "HOST": place.hostname}
    default |= {"PORT": place.port or 5432, "USER": place.username, "PASSWORD": place.password or ""}
else:
    default = {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.sqlite3"}
DATABASES = {"default": default}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "mainspring.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

MAINSPRING = {
    "app": "shop.events:app",
    "data": str(BASE_DIR / "data"),
    "port": int(os.environ.get("SHOP_NODE_PORT", "7070")),
}
if DATABASE_URL:
    MAINSPRING["engine"] = DATABASE_URL  # the log is in the same database: `publish` writes straight into it
