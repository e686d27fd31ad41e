# Has the effect. The input is JSON on standard input, the output is one JSON object on standard output. Paths begin at the space's root.
import json
import sys

given = json.load(sys.stdin)
path = given["input"]["path"].removeprefix("workspace/")
with open(path, encoding="utf-8") as file:
    lines = sorted(file.read().splitlines())
with open(path, "w", encoding="utf-8") as file:
    file.writelines(line + "\n" for line in lines)
json.dump({"lines": len(lines)}, sys.stdout)
