"""Tell somebody else of a regression: one POST of JSON for each, to ``FLEET_WEBHOOK_URL``.

Bounded: a few tries, each with a time limit, and one limit for all of them together, whatever the
other side does. A delivery that fails is said on standard error and changes nothing else. The URL
often holds a token, so neither it nor anything of the environment is ever printed or sent on, and
no redirect is followed. Knows no verdict rule.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fleet.report.regressed import Regression

URL = "FLEET_WEBHOOK_URL"


@dataclass(frozen=True)
class Patience:
    """How long to try: ``tries`` of ``each_s``, ``pause_s`` apart, ``all_s`` in total."""

    tries: int = 3
    each_s: float = 5.0
    pause_s: float = 1.0
    all_s: float = 30.0


PATIENCE = Patience()


def tell(
    regressions: Sequence[Regression],
    environ: Mapping[str, str],
    patience: Patience | None = None,
) -> bool:
    """Deliver them; False when any was not, which was said. Without a URL nothing is to be done."""
    url, patience = environ.get(URL, ""), patience or PATIENCE
    if not url or not regressions:
        return True
    failed: list[str] = ["no answer in time"]
    sender = threading.Thread(target=_send_all, args=(url, regressions, patience, failed))
    sender.daemon = True  # a server that sends one byte a second holds no process
    sender.start()
    sender.join(patience.all_s)
    if failed:
        names = ", ".join(dict.fromkeys(r.contract for r in regressions))
        print(f"fleet: the webhook of {URL} was not told of {names}: {failed[-1]}", file=sys.stderr)
    return not failed


def _send_all(
    url: str, regressions: Sequence[Regression], patience: Patience, failed: list[str]
) -> None:
    """Empties ``failed`` when all arrived, else says there why the last one did not."""
    problems = [_send(url, _body(each), patience) for each in regressions]
    found = [problem for problem in problems if problem]
    failed[:] = found


def _body(regression: Regression) -> bytes:
    body: dict[str, Any] = {"schema": 1, "event": "regressed"} | regression.to_json()
    return json.dumps(body, ensure_ascii=False).encode()


def _send(url: str, body: bytes, patience: Patience) -> str:
    """Why it did not arrive, else nothing. What the other side calls our fault is not repeated."""
    problem = ""
    for number in range(patience.tries):
        time.sleep(patience.pause_s if number else 0.0)
        try:
            return _post(url, body, patience.each_s)
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"HTTP status {error.code}"
            if error.code < 500 and error.code not in (408, 429):
                break
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = type(getattr(error, "reason", error)).__name__
    return problem


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """What was meant for one host is not sent to another."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def _post(url: str, body: bytes, within_s: float) -> str:
    """Once; nothing when it arrived."""
    if urlsplit(url).scheme not in ("http", "https"):
        return "its scheme is neither http nor https"
    headers = {"Content-Type": "application/json", "User-Agent": "fleet"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with _OPENER.open(request, timeout=within_s):
        return ""
