"""A regression is told to a URL, whatever that URL does, and never at the price of a verdict."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleet.replay.engines.synthetic import LIKELY
from fleet.report import webhook
from fleet.report.regressed import Regression
from fleet.report.webhook import URL, Patience, tell
from tests.campaigns import CONTROLS, FakeLauncher, certified, write_configs
from tests.unit.test_metrics import another_alphabet

QUICK = Patience(tries=3, each_s=0.3, pause_s=0.01, all_s=1.5)
TOKEN = "s3cr3t-t0ken"
FOUND = Regression("toy", (), "id", "sha256:ab", "a CPU", "REGRESSED", "it differs", "c1", None)
RACY, _ = CONTROLS


class Server(ThreadingHTTPServer):
    """Answers with one status after another, then with the last one; keeps what it was sent."""

    daemon_threads = True
    block_on_close = False
    statuses: list[int]
    posts: list[tuple[str, dict[str, Any]]]
    stuck: threading.Event


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.headers["Content-Type"], json.loads(body)))
        status = self.server.statuses[0]
        if len(self.server.statuses) > 1:
            del self.server.statuses[0]
        if status == 0:
            self.server.stuck.wait(20)
            return
        self.send_response(status)
        if status in (301, 302, 307):
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Tests print nothing of it."""


@contextmanager
def serving(*statuses: int) -> Iterator[tuple[Server, dict[str, str]]]:
    """A local server and the environment that names it; status 0 hangs."""
    server = Server(("127.0.0.1", 0), Handler)
    server.statuses, server.posts, server.stuck = list(statuses), [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server, {URL: f"http://127.0.0.1:{server.server_port}/hooks/{TOKEN}"}
    finally:
        server.stuck.set()
        server.shutdown()
        server.server_close()


def test_it_posts_what_regressed_and_nothing_of_the_environment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(200) as (server, environ):
        assert tell([FOUND], environ | {"AWS_SECRET_ACCESS_KEY": TOKEN}, QUICK)
        ((kind, body),) = server.posts
    assert kind == "application/json"
    assert body == {
        "schema": 1, "event": "regressed", "contract": "toy", "vary": [], "execution_id": "id",
        "platform": "sha256:ab", "platform_label": "a CPU", "verdict": "REGRESSED",
        "reason": "it differs", "campaign": "c1", "since": None,
    }  # fmt: skip
    assert TOKEN not in json.dumps(body)
    assert capsys.readouterr().err == ""


def test_a_server_that_recovers_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(500, 503, 200) as (server, environ):
        assert tell([FOUND], environ, QUICK)
        assert len(server.posts) == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("statuses", "asked", "words"),
    [((500,), 3, "HTTP status 500"), ((404,), 1, "HTTP status 404"), ((302, 200), 1, "status 302")],
)
def test_what_is_refused_is_said_without_the_url(
    statuses: tuple[int, ...], asked: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(*statuses) as (server, environ):
        assert not tell([FOUND], environ, QUICK)
        assert len(server.posts) == asked
    said = capsys.readouterr().err
    assert words in said and "toy" in said and URL in said
    assert TOKEN not in said and "127.0.0.1" not in said


def test_a_server_that_hangs_holds_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(0) as (server, environ):
        begun = time.monotonic()
        assert not tell([FOUND], environ, QUICK)
        assert time.monotonic() - begun < 5
        assert len(server.posts) == 3
    assert "Timeout" in capsys.readouterr().err


def dribble(listener: socket.socket) -> None:
    """A byte now and then: no single wait is ever too long."""
    connection, _ = listener.accept()
    with connection:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 50:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                return
            time.sleep(0.05)


def test_a_server_that_dribbles_holds_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=dribble, args=(listener,), daemon=True).start()
        begun = time.monotonic()
        environ = {URL: f"http://127.0.0.1:{listener.getsockname()[1]}/"}
        assert not tell([FOUND], environ, Patience(1, 1.0, 0.0, 0.5))
        assert time.monotonic() - begun < 5
    assert "no answer in time" in capsys.readouterr().err


def test_a_port_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert not tell([FOUND], {URL: f"http://127.0.0.1:{port}/{TOKEN}"}, QUICK)
    said = capsys.readouterr().err
    assert "ConnectionRefusedError" in said and TOKEN not in said


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "nonsense"])
def test_other_schemes_are_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not tell([FOUND], {URL: url}, QUICK)
    assert "neither http nor https" in capsys.readouterr().err


def test_without_a_url_or_a_regression_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(200) as (server, environ):
        assert tell([FOUND], {}, QUICK) and tell([], environ, QUICK)
        assert server.posts == []
    assert capsys.readouterr().err == ""


# from campaigns


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    shutil.copytree(campaigned, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Point the product at a server, with little patience."""

    def point(environ: dict[str, str]) -> None:
        monkeypatch.setenv(URL, environ[URL])
        monkeypatch.setattr(webhook, "PATIENCE", QUICK)

    return point


Told = Callable[[dict[str, str]], None]


def test_a_campaign_tells_of_a_regression(
    root: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(200) as (server, environ):
        told(environ)
        script = another_alphabet(monkeypatch)
        answer = certified(root, "toy", launcher=FakeLauncher(script=script))
        monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", LIKELY)
        again = certified(root, "toy", launcher=FakeLauncher())
        (_, body), (_, later) = server.posts
    assert answer.exit_code() == 1 and again.exit_code() == 1
    assert (body["contract"], body["verdict"]) == ("toy", "REGRESSED")
    assert body["campaign"] == answer.campaign and "differ" in body["reason"]
    assert later["campaign"] == again.campaign
    assert body["since"] is not None and later["since"] == body["since"]


def test_a_fail_without_a_pass_before_it_and_a_control_are_none(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configs(tmp_path / "configs")
    with serving(200) as (server, environ):
        told(environ)
        script = another_alphabet(monkeypatch, 5)
        answer = certified(tmp_path, RACY, "toy", launcher=FakeLauncher(script=script))
        assert [v.verdict for v in answer.contracts] == ["FAIL", "FAIL"]
        assert server.posts == []


def test_a_webhook_that_fails_changes_no_exit_code(
    root: Path,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(500) as (server, environ):
        told(environ)
        launcher = FakeLauncher(script=another_alphabet(monkeypatch))
        assert certified(root, launcher=launcher).exit_code() == 1
        assert len(server.posts) == 3
    assert "was not told of toy: HTTP status 500" in capsys.readouterr().err
