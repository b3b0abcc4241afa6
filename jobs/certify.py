"""Run ``fleet certify`` as a Ray job: ``ray job submit -- python jobs/certify.py CONTRACT...``.

Ray exits 1 for any failure of a job, so the verdict's own exit code is printed last as well.
"""

from __future__ import annotations

import sys

from fleet.cli import run


def main() -> int:
    """Certify the contracts of the command line on the cluster that runs this job."""
    code = run(["certify", *sys.argv[1:], "--address", "auto"])
    print(f"fleet exit code: {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
