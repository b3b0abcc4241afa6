"""``fleet certify`` as a Ray job: ``ray job submit -- python jobs/certify.py CONTRACT...``.

Ray exits 1 for any failure of a job; the verdict file holds the verdict's own exit code.
"""

from fleet.job import main

if __name__ == "__main__":
    main("certify")
