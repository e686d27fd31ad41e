"""A synthetic world whose truth is known: a person asks about notes, bills and contacts, and a planner chooses the tool that looks it up.

The tools are effectd's own and really run. The world decides beforehand, by `right` below, whether a tool would find the answer, and
prepares the call so: a guessed path that does not exist fails at once, and a search that misses succeeds, until the person says that the
answer was wrong (an amendment). Since contexts, tools and outcomes are few, the true value of every policy is a sum.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from effectd import Effectd, errors

SUBJECT, SPACE = "agent://planner@deviceA", "shared:household"
TOOLS = ("files.read_text", "files.search", "sqlite.query")
KINDS = {"note": 0.5, "bill": 0.3, "contact": 0.2}

Context = dict[str, float | str]
# From a context to the probability of each tool.
Policy = Callable[[Context], dict[str, float]]

# Settings of the daemon: the reward is success and quality alone, since nobody knows the truth about a measured time beforehand.
SETTINGS = ("reward.weight_cost=0", "reward.weight_latency=0")
# The rewards of a wrong answer, of one that the person finds clumsy (quality 0.5), and of a good one (1, which the tools report).
WRONG, CLUMSY, GOOD = 0.0, 0.6 + 0.3 * 0.5, 0.6 + 0.3 * 1.0


def contexts() -> Iterator[tuple[Context, float]]:
    """Every context, and how likely it is."""
    for kind, vague, old in product(KINDS, (0, 1), (0, 1)):
        yield {"kind": kind, "vague": vague, "old": old}, KINDS[kind] * (0.4 if vague else 0.6) * (0.3 if old else 0.7)


def right(context: Context, tool: str) -> float:
    """How likely this tool finds the answer."""
    kind, vague, old = context["kind"], context["vague"], context["old"]
    if tool == "files.read_text":
        share = {"note": 0.95, "bill": 0.2, "contact": 0.1}[kind] - 0.1 * vague - 0.1 * old
    elif tool == "files.search":
        share = {"note": 0.5, "bill": 0.25, "contact": 0.2}[kind] + (0.3 if vague and kind == "contact" else 0.0)
    else:
        share = {"note": 0.1, "bill": 0.75, "contact": 0.65}[kind] - 0.2 * vague - 0.2 * old
    return min(max(share, 0.02), 0.98)


def clumsy(tool: str) -> float:
    """How likely the person finds a right answer clumsy."""
    return {"files.read_text": 0.3, "files.search": 0.8, "sqlite.query": 0.1}[tool]


def habit(context: Context) -> dict[str, float]:
    """The planner before it learns: it reads a file, and searches if the question is vague. For notes that is nearly always right."""
    usual = "files.search" if context["vague"] and context["kind"] != "note" else "files.read_text"
    return {tool: 0.8 if tool == usual else 0.1 for tool in TOOLS}


def mean_reward(context: Context, tool: str) -> float:
    return right(context, tool) * (GOOD + clumsy(tool) * (CLUMSY - GOOD))


def value(policy: Policy) -> float:
    """The true value of a policy: the sum over all contexts and tools."""
    return sum(share * sum(chance * mean_reward(context, tool) for tool, chance in policy(context).items()) for context, share in contexts())


def furnish(folder: Path) -> None:
    """The person's files, in the folder of the space; none that is already there is replaced."""
    texts = {folder / "notes" / f"{kind}.txt": f"the {kind} that you look for\n".encode() for kind in KINDS}
    theirs = [path for path, text in texts.items() if path.exists() and path.read_bytes() != text]
    if theirs or ((folder / "home.db").exists() and not all(path.exists() for path in texts)):
        raise SystemExit(f"{folder} has notes or a home.db of its own: run effectd and this example in an empty folder")
    (folder / "notes").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_bytes(text)
    with sqlite3.connect(folder / "home.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS answers (kind TEXT PRIMARY KEY, answer TEXT)")
        for kind in KINDS:
            database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (kind, f"the {kind} that you look for"))
    database.close()


def call(kind: str, tool: str, finds: bool) -> dict[str, object]:
    word = kind if finds else "missing"
    if tool == "files.read_text":
        return {"path": f"workspace/notes/{word}.txt", "space_id": SPACE}
    if tool == "files.search":
        return {"path": "workspace/notes", "text": f"the {word} that", "space_id": SPACE}
    return {"path": "workspace/home.db", "sql": "SELECT answer FROM answers WHERE kind = ?", "args": [word], "space_id": SPACE}


def draws(policy: Policy, count: int, seed: int) -> Iterator[tuple[Context, dict[str, float], str, bool, bool]]:
    """The world's dice: context, probabilities, the tool chosen by them, whether it finds the answer, and whether the person finds that clumsy."""
    dice = random.Random(seed)
    every, shares = zip(*contexts(), strict=True)
    for _ in range(count):
        context = dice.choices(every, shares)[0]
        chances = policy(context)
        tool = dice.choices(list(chances), list(chances.values()))[0]
        finds = dice.random() < right(context, tool)
        yield context, chances, tool, finds, finds and dice.random() < clumsy(tool)


def live(effectd: Effectd, policy: Policy, run: str, count: int, seed: int) -> None:
    """Lets a planner decide by this policy, and effectd carry it out. What the person says later becomes an amendment."""

    def one(index: int, drawn: tuple[Context, dict[str, float], str, bool, bool]) -> None:
        context, chances, tool, finds, is_clumsy = drawn
        candidates = [{"id": name, "propensity": chance} for name, chance in chances.items()]
        try:
            receipt = effectd.execute(
                tool, call(context["kind"], tool, finds), subject_id=SUBJECT, space_id=SPACE, action_id=f"{run}-{index:05}",
                candidates=candidates, chosen=tool, propensity=chances[tool], context=context,
            ).receipt
        except errors.FileNotFound as error:
            receipt = error.receipt
        if is_clumsy or receipt.status == "ok" and not finds:
            said = {"quality": 0.5} if is_clumsy else {"success": False}
            effectd.call("POST", f"/v1/receipts/{receipt.receipt_id}/amendments", body={**said, "source": "person"})

    with ThreadPoolExecutor(4) as several:
        list(several.map(one, range(count), draws(policy, count, seed)))
