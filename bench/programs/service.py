"""A small service: orders in JSON are read, priced, sorted, rendered and packed, over and over."""
import hashlib
import json
import random
import re
import zlib

WORD = re.compile(r"\b(\w)(\w*)\b")


def order(number):
    lines = [{"sku": f"sku-{random.randrange(5000)}", "count": random.randrange(1, 9)} for _ in range(30)]
    return {"number": number, "customer": f"customer {number % 97}", "lines": lines}


def price(line):
    digest = hashlib.sha256(line["sku"].encode()).digest()
    return line["count"] * (digest[0] * 256 + digest[1])


def render(read):
    name = WORD.sub(lambda match: match[1].upper() + match[2], read["customer"])
    rows = sorted(read["lines"], key=price, reverse=True)
    return "\n".join([name] + [f"{row['sku']:>12} {price(row):>8}" for row in rows])


def main():
    random.seed(1)
    number = 0
    while True:
        orders = [order(number + i) for i in range(20)]
        number += len(orders)
        read = json.loads(json.dumps(orders))
        zlib.compress("\n".join(render(one) for one in read).encode(), 6)


main()
