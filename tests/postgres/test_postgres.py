"""Statements to a real PostgreSQL by the real daemon, its broker and a confined child."""

import base64
import concurrent.futures
import json
import re
import socket
import subprocess
import threading
import time
import unittest
from pathlib import Path

from harness import ENVIRONMENT, PASSWORD, PROGRAM, SOURCE, SPACE, SUBJECT, Daemon, Server, free_port, until

DOCS = Path(__file__).resolve().parents[2] / "docs" / "postgres.md"


def setUpModule():
    global server
    server = Server()
    quoted = PASSWORD.replace("'", "''")
    server.sql(f"CREATE ROLE reader LOGIN PASSWORD '{quoted}'")
    server.sql(f"CREATE ROLE writer LOGIN PASSWORD '{quoted}'")
    server.sql(f"CREATE ROLE boss LOGIN SUPERUSER PASSWORD '{quoted}'")
    server.sql(f"CREATE ROLE heir LOGIN PASSWORD '{quoted}' IN ROLE boss")
    server.sql(f"CREATE ROLE weak LOGIN PASSWORD '{quoted}'")
    server.sql(f"CREATE ROLE open LOGIN PASSWORD '{quoted}'")
    server.sql("CREATE SEQUENCE counter; CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items SELECT n, 'item ' || n "
               "FROM generate_series(1, 150) n; GRANT SELECT ON items TO reader; GRANT ALL ON items, counter TO writer; "
               "CREATE FUNCTION harmless() RETURNS int LANGUAGE plpgsql AS $$ BEGIN DELETE FROM items; RETURN 1; END $$; "
               "CREATE FUNCTION rude() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'canary of a row'; END $$; "
               "CREATE TYPE mood AS ENUM ('calm')")


def tearDownModule():
    server.close()


class Connected(unittest.TestCase):
    """With the connection of a role that only reads."""
    user = "reader"

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.addClassCleanup(cls.daemon.close)
        cls.id = cls.daemon.connect(server, user=cls.user)

    def refused(self, sql, status=400, code="params_invalid", **more):
        got, problem = self.daemon.query(sql, **more)
        self.assertEqual((got, problem.get("code")), (status, code), (sql, problem))
        return problem


class Reading(Connected):
    def test_types_are_told_truthfully(self):
        found = self.daemon.rows(
            "SELECT 1::int2 AS a, 9007199254740991 AS b, 9007199254740993 AS c, -9223372036854775808 AS d, 12345678901234567890.10 AS e, "
            "'NaN'::numeric AS f, 'NaN'::float8 AS g, '-Infinity'::float4 AS h, 0.1::float8 AS i, 0.1::float4 AS j, '\\x00ff'::bytea AS k, "
            "true AS l, NULL::text AS m, '2026-11-19 08:00:00.000001+02'::timestamptz AS n, 'infinity'::date AS o, "
            "'1 day 2 hours'::interval AS p, '0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50'::uuid AS q, '{\"a\": 1e400}'::jsonb AS r, "
            "ARRAY[1, NULL, 3] AS s, 'calm'::mood AS t, 1.5::numeric(10,2) AS u, 'é\"\\'::varchar(9) AS v, ''::text AS w")
        values = dict(zip("abcdefghijklmnopqrstuvw", found["rows"][0]))
        self.assertEqual(values, {
            "a": 1, "b": 9007199254740991, "c": "9007199254740993", "d": "-9223372036854775808", "e": "12345678901234567890.10",
            "f": "NaN", "g": "NaN", "h": "-Infinity", "i": 0.1, "j": 0.1, "k": {"bytes": 2, "hex": "00ff"}, "l": True, "m": None,
            "n": "2026-11-19 06:00:00.000001+00", "o": "infinity", "p": "P1DT2H", "q": "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50",
            "r": values["r"], "s": "{1,NULL,3}", "t": "calm", "u": "1.50", "v": "é\"\\", "w": ""})
        self.assertEqual(len(values["r"]), len('{"a": ') + 401 + 1)
        types = [column["type"] for column in found["columns"]]
        self.assertEqual(types, ["smallint", "bigint", "bigint", "bigint", "numeric", "numeric", "double precision", "real", "double precision",
                                 "real", "bytea", "boolean", "text", "timestamp with time zone", "date", "interval", "uuid", "jsonb",
                                 "integer[]", "mood", "numeric(10,2)", "character varying(9)", "text"])
        self.assertEqual((found["row_count"], found["truncated"], found["cells_shortened"]), (1, False, 0))

    def test_a_hundred_rows_and_no_more(self):
        found = self.daemon.rows("SELECT * FROM items ORDER BY id")
        self.assertEqual((found["row_count"], found["truncated"], found["rows"][99]), (100, True, [100, "item 100"]))
        found = self.daemon.rows("SELECT * FROM items WHERE id <= 100")
        self.assertEqual((found["row_count"], found["truncated"]), (100, False))
        self.assertEqual(self.daemon.rows("SELECT * FROM items WHERE false")["rows"], [])
        self.assertEqual(self.daemon.rows("SELECT FROM items LIMIT 2")["rows"], [[], []])
        self.assertEqual(self.daemon.rows("SHOW transaction_read_only")["rows"], [["on"]])
        self.assertIn("Seq Scan", str(self.daemon.rows("EXPLAIN (ANALYZE, COSTS off) SELECT * FROM items")["rows"]))

    def test_a_million_rows_take_no_memory(self):
        self.daemon.rows("SELECT 1")
        status = Path(f"/proc/{self.daemon.broker()}/status")
        peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])
        before = peak()
        found = self.daemon.rows("SELECT n, repeat('x', 1000) FROM generate_series(1, 1000000) n")
        self.assertEqual((found["row_count"], found["truncated"]), (100, True))
        found = self.daemon.rows("SELECT repeat('é', 150000) FROM generate_series(1, 50)")
        self.assertTrue(found["truncated"] and found["cells_shortened"] == found["row_count"] > 0, found["row_count"])
        self.assertLess(peak() - before, 8_192, "KiB")

    def test_a_value_of_a_gigabyte_is_refused(self):
        self.daemon.rows("SELECT 1")
        status = Path(f"/proc/{self.daemon.broker()}/status")
        problem = self.refused("SELECT repeat('x', 1000000000)", 502, "egress_failed")
        self.assertIn("32 MiB", str(problem))
        self.assertLess(int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]), 65_536, "KiB")

    def test_errors_have_a_code_and_no_data(self):
        problem = self.refused("SELECT * FROM nothing")
        self.assertIn("42P01", str(problem))
        problem = self.refused("SELECT name::int FROM items")
        self.assertIn("22P02", str(problem))
        self.assertNotIn("item 1", str(problem))
        problem = self.refused("SELECT 'canary-of-the-statement' 7 SELECT")
        self.assertIn("42601", str(problem))
        problem = self.refused("SELECT rude()", 422, "tool_failed")
        self.assertNotIn("canary", str(problem))
        self.assertIn("P0001", str(problem))

    def test_a_slow_statement_ends_on_both_sides(self):
        begun = time.monotonic()
        problem = self.refused("SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b", 502, "timed_out", timeout_ms=3_000)
        self.assertIn("57014", str(problem))
        self.assertLess(time.monotonic() - begun, 10)
        until("nothing runs on", lambda: server.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'") == "0")

    def test_sixty_four_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(lambda n: self.daemon.ask("POST", "/v1/actions?wait", {
                "action_id": f"many-{n}", "tool_id": f"{SOURCE}.run_query", "space_id": SPACE, "subject_id": SUBJECT,
                "params": {"sql": f"SELECT {n}", "space_id": SPACE}, "policy_ctx": {"actor": "alice", "device": "phone1"},
                "qos": {"max_retries": 10, "timeout_ms": 30_000}}), range(64)))
        self.assertEqual([view.get("result", view).get("rows") for _, view in answers], [[[n]] for n in range(64)])
        until("no connection is left", lambda: server.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader'") == "0")

    def test_a_receipt_says_what_went_over_the_wire(self):
        _, view = self.daemon.query("SELECT 'canary-of-a-value'")
        [record] = view["receipt"]["egress"]
        self.assertEqual((record["host"], record["method"], record["allowed_range"]), ("localhost", "SELECT", True))
        self.assertTrue(record["bytes_out"] > 300 and record["bytes_in"] > 300 and "status" not in record and "fault" not in record, record)
        self.assertNotIn("canary", str(view["receipt"]))
        log = (self.daemon.folder / "daemon.log").read_text()
        self.assertIn("a request went to a service", log)
        self.assertNotIn("canary-of-a-value", log)

    def test_nobody_has_the_password(self):
        self.daemon.rows(f"SELECT $${PASSWORD}$$ AS echo, 1 AS a")
        spellings = [PASSWORD.encode(), PASSWORD.encode().hex().encode(), base64.b64encode(PASSWORD.encode())]
        for file in self.daemon.folder.rglob("*"):
            if file.is_file():
                text = file.read_bytes()
                self.assertFalse(any(spelling in text for spelling in spellings), file)
        self.assertEqual(self.daemon.rows(f"SELECT $${PASSWORD}$$")["rows"], [["[redacted:secret]"]])


class Writing(Connected):
    """The role may write, so that the two other locks hold alone."""
    user = "writer"

    def test_the_server_holds_what_the_check_does_not_see(self):
        problem = self.refused("SELECT harmless()")
        self.assertIn("25006", str(problem))
        self.assertEqual(server.sql("SELECT count(*) FROM items"), "150")

    def test_the_check_holds_before_anything_leaves(self):
        connected = lambda: server.sql("SELECT sum(sessions) FROM pg_stat_database WHERE datname = 'shop'")
        for sql in ("WITH x AS (DELETE FROM items RETURNING *) SELECT * FROM x", "EXPLAIN ANALYZE DELETE FROM items",
                    "COPY (SELECT 1) TO PROGRAM 'touch /tmp/x'", "SELECT dblink_exec('dbname=shop', 'DELETE FROM items')",
                    "SELECT 1; DELETE FROM items", "SELECT 1; SET TRANSACTION READ WRITE", "SELECT * FROM items FOR UPDATE",
                    "SELECT * INTO copies FROM items", "SELECT nextval('counter')", "SELECT setval('counter', 7)",
                    "SELECT pg_read_file('/etc/passwd')", "SELECT lo_import('/etc/passwd')", "SELECT pg_sleep(1000)",
                    "SELECT pg_terminate_backend(1)", "SELECT 'a\\'; DELETE FROM items --'", "SELECT $$a$$; DELETE FROM items --$$",
                    "SELECT 1 /* /* */ ; */; DELETE FROM items", "SELECT 1\0", "DO $$ BEGIN END $$", "LISTEN a", "VACUUM", ""):
            self.refused(sql)
        self.assertEqual(server.sql("SELECT last_value || is_called::text FROM counter"), "1false")
        self.assertEqual(server.sql("SELECT count(*) FROM items"), "150")

    def test_a_test_of_the_connection_warns(self):
        text = self.daemon.cli("connections", "test", self.id)
        for part in ("version      15", "role         writer", "certificate  localhost", "may change rows"):
            self.assertIn(part, text)
        self.assertNotIn("superuser", text)


class Trust(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.close)

    def fails(self, part, id):
        text = self.daemon.cli("connections", "test", id, ok=(1,))
        self.assertIn(part, text)
        status, problem = self.daemon.query("SELECT 1")
        self.assertEqual((status, problem["code"]), (502, "egress_failed"), problem)
        self.assertIn(part, str(problem))
        self.assertNotIn("canary", str(problem))

    def test_a_wrong_password(self):
        self.fails("28P01", self.daemon.connect(server, password="canary-of-another"))

    def test_another_authority(self):
        other = Server.__new__(Server)
        other.port, other.authority = server.port, self.daemon.folder / "other.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=authority", "-keyout", "/dev/null", "-out", str(other.authority)], check=True, capture_output=True)
        self.fails("authority", self.daemon.connect(other))

    def test_a_pinned_key(self):
        key = subprocess.run("openssl x509 -pubkey -noout -in server.crt | openssl pkey -pubin -outform der | sha256sum | cut -c-64",
                             shell=True, cwd=server.data, check=True, capture_output=True, text=True).stdout.strip()
        self.daemon.connect(server, "--key", key)
        self.assertEqual(self.daemon.rows("SELECT 1")["rows"], [[1]])
        self.assertEqual(self.daemon.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")["rows"], [[True]])

    def test_no_tls_only_where_it_is_allowed(self):
        self.daemon.connect(server, tls=False)
        self.assertEqual(self.daemon.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")["rows"], [[False]])
        refused = self.daemon.cli("connections", "add", "--org", "home", "--name", "B", "--host", "localhost", "--postgres", "shop", "--user", "reader",
                                  "--secret", "shop-password", "--no-tls", "--yes", ok=(2,))
        self.assertEqual(refused, "")

    def test_a_server_that_wants_the_password_itself(self):
        for user in ("weak", "open"):
            source = SOURCE if user == "open" else f"{SOURCE[:-1]}1"
            id = self.daemon.connect(server, user=user, source=source)
            self.assertIn("SCRAM-SHA-256", self.daemon.cli("connections", "test", id, ok=(1,)))

    def test_an_address_that_nobody_allowed(self):
        self.daemon.connect(server, allow=())
        status, problem = self.daemon.query("SELECT 1")
        self.assertEqual((status, problem["code"]), (403, "egress_refused"), problem)
        self.assertIn("loopback", str(problem))

    def test_a_superuser_is_named(self):
        id = self.daemon.connect(server, user="boss")
        self.assertIn("superuser", self.daemon.cli("connections", "test", id))
        heir = self.daemon.connect(server, user="heir", source=f"{SOURCE[:-1]}1")
        self.assertIn("superuser", self.daemon.cli("connections", "test", heir))
        off = self.daemon.connect(server, user="boss", source=f"{SOURCE[:-1]}2")
        self.daemon.cli("connections", "disable", off, "--yes")
        self.daemon.connect(server, user="reader", source=f"{SOURCE[:-1]}3")
        # A port on which nothing listens.
        gone = Server.__new__(Server)
        gone.port, gone.authority = free_port(), server.authority
        self.daemon.connect(gone, source=f"{SOURCE[:-1]}4")
        report = json.loads(self.daemon.cli("doctor", "-o", "json"))
        roles = [(finding["verdict"], finding["what"]) for finding in report["findings"] if finding["promise"] == "database roles"]
        for (verdict, what), (expected, nth, *parts) in zip(roles, (
                ("weaker", "0", "as boss", "superuser"), ("weaker", "1", "as heir", "superuser"), ("enforced", "3", "reader"),
                ("missing", "4", "cannot be looked at")), strict=True):
            self.assertEqual((verdict, what.split(" ")[0]), (expected, f"{SOURCE[:-1]}{nth}"), roles)
            for part in parts:
                self.assertIn(part, what)
        # The rights of a superuser do not open the other two locks.
        self.assertEqual(self.daemon.query("SELECT harmless()")[0], 400)
        self.assertEqual(server.sql("SELECT count(*) FROM items"), "150")

    def test_a_server_without_tls(self):
        """It says so in clear, and goes on in clear: nothing follows it."""
        listener = socket.create_server(("127.0.0.1", 0))
        got = []

        def serve():
            while True:
                try:
                    stream, _ = listener.accept()
                except OSError:
                    return
                with stream:
                    got.append(stream.recv(64))
                    stream.sendall(b"N")
                    got.append(stream.recv(64))

        threading.Thread(target=serve, daemon=True).start()
        self.addCleanup(listener.close)
        other = Server.__new__(Server)
        other.port, other.authority = listener.getsockname()[1], server.authority
        self.fails("does not offer TLS", self.daemon.connect(other))
        self.assertEqual(set(got), {b"\0\0\0\x08\x04\xd2\x16\x2f", b""})

    def test_a_server_that_dies_in_the_middle(self):
        other = Server()
        self.addCleanup(other.close)
        quoted = PASSWORD.replace("'", "''")
        other.sql(f"CREATE ROLE reader LOGIN PASSWORD '{quoted}'")
        self.daemon.connect(other)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            slow = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
            asked = pool.submit(self.daemon.query, slow)
            until("it runs", lambda: other.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'") == "1")
            other.stop()
            status, problem = asked.result()
        # A read: it may be asked again, and its outcome is not open.
        self.assertEqual((status, problem["code"]), (502, "egress_failed"), problem)
        other.start()
        self.assertEqual(self.daemon.rows("SELECT 1", max_retries=3)["rows"], [[1]])


class Guide(unittest.TestCase):
    def test_the_five_steps_of_the_page(self):
        daemon = Daemon(modes="", hosts="")
        self.addCleanup(daemon.close)
        server.sql("CREATE TABLE orders (id int, total numeric(10,2), paid_at timestamptz); INSERT INTO orders VALUES (7, 12.50, NULL)")
        blocks = re.findall(r"```(sh|sql|json|text)\n(.*?)```", DOCS.read_text(), re.DOTALL)
        password = re.search(r"PASSWORD '([^']+)'", blocks[0][1] if blocks[0][0] == "sql" else DOCS.read_text())[1]
        environment = ENVIRONMENT | {"EFFECTD_STATE": str(daemon.state), "PATH": f"{daemon.folder}:{ENVIRONMENT['PATH']}"}
        (daemon.folder / "effectd").symlink_to(PROGRAM)
        (daemon.folder / "pass").write_text(f"#!/bin/sh\nprintf %s '{password}'\n")
        (daemon.folder / "pass").chmod(0o755)
        ran = []
        for kind, text in blocks:
            if kind == "sql":
                server.sql(text)
            if kind == "sh":
                text = text.replace("db.example.org", "localhost").replace(
                    "--postgres", f"--port {server.port} --allow 127.0.0.0/8 --allow ::1 --authority {server.authority} --postgres")
                for name in set(re.findall(r"0199f6a2\b", text)):
                    text = text.replace(name, daemon.ask("GET", "/v1/connections")[1][0]["connection_id"])
                done = subprocess.run(["bash", "-euc", text], cwd=daemon.folder, env=environment, capture_output=True, text=True)
                self.assertIn(done.returncode, (0, 4), (text, done.stdout, done.stderr))
                ran.append(done.stdout)
        self.assertIn("effectd_reader", "".join(ran))
        self.assertNotIn("warning", "".join(ran), ran)
        source = daemon.ask("GET", "/v1/connections")[1][0]["source"]
        request = next(text for kind, text in blocks if kind == "json" and "run_query" in text)
        request = re.sub(r"db:[0-9a-f-]+\.", f"{source}.", request)
        status, held = daemon.ask("POST", "/v1/actions?wait", json.loads(request))
        self.assertEqual(status, 202, held)
        approval = held["approval"]["approval_id"]
        asked = daemon.ask("GET", f"/v1/approvals/{approval}")[1]
        shown = asked["prompt"]["preview"]["request"]
        self.assertEqual((shown["method"], shown["url"]), ("SELECT", f"postgres://localhost:{server.port}/shop"), asked)
        self.assertIn("SELECT id, total", shown["body"]["text"])
        daemon.cli("approvals", "approve", approval, "--yes")
        view = until("it has ended", lambda: (lambda view: view.get("receipt") and view)(daemon.ask("GET", f"/v1/actions/{held['action_id']}")[1]))
        self.assertEqual((view["receipt"]["outcome"], view["receipt"]["preview"]["verdict"]), ("executed", "matched"), view)
        self.assertEqual(view["receipt"]["egress"][0]["method"], "SELECT")


if __name__ == "__main__":
    unittest.main()
