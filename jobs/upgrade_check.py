"""``fleet upgrade-check`` as a job: ``ray job submit -- python jobs/upgrade_check.py BASE NEW``.

Ray exits 1 for any failure of a job; the verdict file holds the comparison's own exit code.
"""

from fleet.job import main

if __name__ == "__main__":
    main("upgrade-check")
