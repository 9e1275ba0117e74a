"""The site of W9, as a WSGI server loads it: the HTTP API and nothing else."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.ours.settings")

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
