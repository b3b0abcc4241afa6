"""``fleet campaign`` as a Ray job: ``ray job submit -- python jobs/nightly.py FLEET``.

Its verdict file tells where every contract stands after the night, as ``fleet status`` does; its
exit code is the campaign's. ``jobs/submit.py`` submits it once a day.
"""

from fleet.job import main

if __name__ == "__main__":
    main("campaign", then=["status"])
