# Runs the scripts as effectd does, but without its sandbox: python3 test.py
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(script, given, space):
    given = json.dumps({"input": given, "failedChecks": [], "spaceId": "shared:test"})
    ran = subprocess.run([sys.executable, "-I", HERE / script], input=given, cwd=space, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


with tempfile.TemporaryDirectory() as space:
    file = pathlib.Path(space, "list.txt")
    file.write_text("pears\napples\n")
    given = {"path": "workspace/list.txt"}
    assert run("verify.py", given, space) == {"checks": [{"name": "sorted", "ok": False}]}
    assert run("execute.py", given, space) == {"lines": 2}
    assert file.read_text() == "apples\npears\n"
    assert run("verify.py", given, space) == {"checks": [{"name": "sorted", "ok": True}]}
    assert run("rollback.py", given, space) == {}
print("ok")
