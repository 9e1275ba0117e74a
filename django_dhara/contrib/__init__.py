"""Apps that join django_dhara to other systems; each is added to INSTALLED_APPS, and needs what it joins to."""
