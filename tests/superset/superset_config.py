"""A Superset for one run of run.py: its metadata in one file, no browser in front."""

import os

SECRET_KEY = "of a server that listens on the loopback address for a minute"
SQLALCHEMY_DATABASE_URI = f"sqlite:///{os.environ['SUPERSET_METADATA']}"
# Asked by a program with a bearer token, not by forms.
WTF_CSRF_ENABLED = False
TALISMAN_ENABLED = False
RATELIMIT_ENABLED = False
# Each question must come through the door.
CACHE_CONFIG = DATA_CACHE_CONFIG = {"CACHE_TYPE": "NullCache"}
