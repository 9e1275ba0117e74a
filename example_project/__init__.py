"""The example project: a shop that sends its work through django_dhara."""
