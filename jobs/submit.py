"""Submit ``jobs/nightly.py`` once a UTC day: ``python jobs/submit.py FLEET --verdicts DIR``.

Ends with the exit code of the night's verdict file, also when that night was submitted before.
"""

from pathlib import Path

from fleet.submit import main

if __name__ == "__main__":
    main(Path(__file__).resolve().with_name("nightly.py"))
