"""The lines of a run as a table in Markdown."""

import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    print("| | work | in flight | per second | p50 | p99 |\n|---|---|---|---|---|---|")
    for line in lines:
        rate = "{:,.0f}".format(line["per_second"])
        times = " | ".join("{:,.0f} µs".format(line[at]) if at in line else "" for at in ("p50_us", "p99_us"))
        print("| {peer} | {work} | {in_flight} | {rate} | {times} |".format(rate=rate, times=times, **line))


main()
