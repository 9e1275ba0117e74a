"""What `manage.py dhara_demo` does, one part a file.

stage.py      reach the database, migrate it, take away what the last demo left
crew.py       the processes: started, watched, frozen, killed, never left behind
play.py       the play: orders come in, a worker is killed, its tasks come back
report.py     what the database says about it, and the verdict
screen.py     the terminal: events, a progress bar, a table
open_shop.py  --serve: the site, a worker, a customer now and then
"""
