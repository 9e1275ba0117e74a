from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):

    # An index is made beside writers only outside of a transaction.
    atomic = False

    dependencies = [
        ('dhara', '0003_operators'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='task',
            index=models.Index(condition=models.Q(('state', 'DEAD')), fields=['backend', 'function', 'error_class', 'error_fingerprint', 'finished_at'], name='dhara_task_dead'),
        ),
    ]
