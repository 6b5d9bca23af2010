"""Load for the screenshot: queries a small database and writes the rows as JSON."""

import json
import math
import re
import sqlite3
import time
import zlib


def fill(database: sqlite3.Connection) -> None:
    database.execute("create table sale (region text, product text, amount real)")
    rows = [(f"region {i % 7}", f"product {i % 31}", i * 1.5) for i in range(4000)]
    database.executemany("insert into sale values (?, ?, ?)", rows)


def report(database: sqlite3.Connection) -> bytes:
    query = "select region, product, sum(amount), avg(amount) from sale group by region, product order by 3 desc"
    rows = database.execute(query).fetchall()
    lines = [re.sub(r"(\w+) (\d+)", r"\2 \1", f"{region} {product} {total}") for region, product, total, _ in rows]
    return zlib.compress(json.dumps({"rows": rows, "lines": lines}).encode(), 6)


def main() -> None:
    database = sqlite3.connect(":memory:")
    fill(database)
    start = time.monotonic()
    while True:
        began = time.monotonic()
        for _ in range(5):
            report(database)
        # Uses a share of one core that rises and falls, so that the timeline moves.
        share = 0.08 + 0.03 * math.cos((time.monotonic() - start) / 20)
        time.sleep((time.monotonic() - began) * (1 / share - 1))


main()
