"""``fleet trace`` as a Ray job: ``ray job submit -- python jobs/trace.py CONTRACT [--sample S]``.

Ray exits 1 for any failure of a job; the verdict file holds the result's own exit code.
"""

from fleet.job import main

if __name__ == "__main__":
    main("trace")
