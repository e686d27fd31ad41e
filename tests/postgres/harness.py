"""Debian's PostgreSQL in a folder of its own, and the real daemon in front of it.

`EFFECTD` names the program, `EFFECTD_POSTGRES` the folder of PostgreSQL's programs. Both servers end with the test.
"""

import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAM = os.path.abspath(os.environ["EFFECTD"])
BIN = Path(os.environ["EFFECTD_POSTGRES"])
# The program refuses variables that it does not know.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTD")}
# PostgreSQL does not run as root.
OWNER = "postgres"
SUBJECT, SPACE = "agent://planner@deviceA", "shared:household"
PASSWORD = "canary-Zq7/of \"the\" role+é"
SOURCE = "db:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"
WAIT_S = 60


def until(what, holds):
    """Waits until a condition holds, and returns what it came to."""
    end = time.monotonic() + WAIT_S
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        time.sleep(0.02)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class Server:
    """A cluster with the database `shop`, over TLS with a certificate of its own authority."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="effectd-postgres."))
        self.port = free_port()
        self.data, self.authority = self.folder / "data", self.folder / "authority.pem"
        user = pwd.getpwnam(OWNER)
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.folder.chmod(0o755)
        self.run("initdb", "-D", self.data, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        key, request = self.data / "server.key", self.folder / "server.csr"
        ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl("req", "-x509", *ec, "-days", 2, "-subj", "/CN=authority", "-keyout", self.folder / "authority.key", "-out", self.authority)
        openssl("req", *ec, "-subj", "/CN=server", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", request)
        openssl("x509", "-req", "-in", request, "-copy_extensions", "copy", "-days", 2, "-CA", self.authority,
                "-CAkey", self.folder / "authority.key", "-CAcreateserial", "-out", self.data / "server.crt")
        for file in (key, self.data / "server.crt"):
            os.chown(file, user.pw_uid, user.pw_gid)
            file.chmod(0o600)
        (self.data / "pg_hba.conf").write_text(
            "local all all trust\nhost all weak all password\nhost all open all trust\nhost all all all scram-sha-256\n")
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"port = {self.port}\nlisten_addresses = 'localhost'\nunix_socket_directories = '{self.folder}'\nssl = on\n"
                       "fsync = off\nmax_connections = 120\nlog_min_messages = log\n")
        self.start()
        self.sql("CREATE DATABASE shop", database="postgres")

    def run(self, program, *words, ok=True, **more):
        """One of PostgreSQL's programs, as its own user."""
        words = ["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--init-groups", BIN / program, *map(str, words)]
        ran = subprocess.run(words, capture_output=True, text=True, cwd=self.folder, env=ENVIRONMENT, **more)
        assert not ok or ran.returncode == 0, (words, ran.stdout, ran.stderr)
        return ran.stdout

    def start(self):
        # Its log is a file: it outlives pg_ctl, which would hand it our pipe.
        self.run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "start")

    def stop(self):
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "stop", ok=False)

    def sql(self, text, database="shop"):
        return self.run("psql", "-h", self.folder, "-p", self.port, "-U", OWNER, "-d", database, "-qAt", "-v", "ON_ERROR_STOP=1", "-c", text).strip()

    def close(self):
        self.stop()
        shutil.rmtree(self.folder)


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self.path)


class Daemon:
    """`effectd serve` with a state of its own, whose planner may query databases."""

    def __init__(self, modes=f'"{SOURCE}.run_query" = "allow"', hosts='"localhost"'):
        self.folder = Path(tempfile.mkdtemp(prefix="effectd-pg-daemon."))
        self.state, self.actions = self.folder / ".effectd", 0
        self.cli("init")
        policy = self.state / "policy" / "policy.toml"
        text = policy.read_text()
        for old, new in (('"diagnose"]', '"diagnose", "db.query"]'), ('"22:00"', '"00:00"'), ('"06:00"', '"00:00"'),
                         ("hosts = []", f"hosts = [{hosts}]"), ("modes = {", f"modes = {{ {modes}," if modes else "modes = {"),
                         ("[clock]\n", "[timeouts]\nlow_ms = 60000\nmedium_ms = 59000\nhigh_ms = 59000\n\n[clock]\n")):
            assert old in text, old
            text = text.replace(old, new)
        policy.write_text(text)
        (self.folder / "workspace").mkdir(exist_ok=True)
        with open(self.folder / "daemon.log", "ab") as log:
            self.process = subprocess.Popen([PROGRAM, "serve", "--state", self.state], cwd=self.folder, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        until("the daemon answers", self.answers)

    def answers(self):
        assert self.process.poll() is None, (self.folder / "daemon.log").read_text()[-3000:]
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def cli(self, *words, ok=(0,), given=None):
        ran = subprocess.run([PROGRAM, *map(str, words), "--state", self.state], capture_output=True, text=True, cwd=self.folder,
                             env=ENVIRONMENT, input=given)
        assert ran.returncode in ok, (words, ran.returncode, ran.stdout, ran.stderr)
        return ran.stdout

    def ask(self, method, path, body=None):
        """Status and JSON of an answer."""
        connection = Unix(str(self.state / "run" / "effectd.sock"))
        try:
            headers = {"content-type": "application/json"} if body is not None else {}
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def connect(self, server, *more, user="reader", password=PASSWORD, tls=True, source=SOURCE, allow=("127.0.0.0/8", "::1")):
        """Adds the connection, and returns its id."""
        self.cli("secrets", "set", "home", "shop-password", "--yes", given=password)
        trust = ["--authority", server.authority] if tls else ["--no-tls"]
        self.cli("connections", "add", "--org", "home", "--name", "Shop", "--source", source, "--host", "localhost", "--postgres", "shop",
                 "--user", user, "--secret", "shop-password", "--port", server.port, *(word for one in allow for word in ("--allow", one)),
                 *(more or trust), "--yes")
        [known] = [one for one in self.ask("GET", "/v1/connections")[1] if one["source"] == source]
        return known["connection_id"]

    def query(self, sql, timeout_ms=30_000, **qos):
        """Status and JSON of one action."""
        self.actions += 1
        qos["timeout_ms"] = timeout_ms
        return self.ask("POST", "/v1/actions?wait", {
            "action_id": f"query-{self.actions}", "tool_id": f"{SOURCE}.run_query", "space_id": SPACE, "subject_id": SUBJECT,
            "params": {"sql": sql, "space_id": SPACE}, "policy_ctx": {"actor": "alice", "device": "phone1"}, "qos": qos})

    def rows(self, sql, **more):
        status, view = self.query(sql, **more)
        assert status == 200, (sql, status, view)
        return view["result"]

    def broker(self):
        """The process id of the broker."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = [line for line in (folder / "status").read_text().splitlines() if line.startswith("PPid:")]
            except OSError:
                continue
            if b"__egress" in words and parent == [f"PPid:\t{self.process.pid}"]:
                return int(folder.name)
        raise AssertionError("there is no broker")

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        shutil.rmtree(self.folder)
