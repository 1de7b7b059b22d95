"""Memory of `dragoman translate` over a stream of many lines: is it flat?

    python benchmarks/translation_memory.py --model models/en-de --lines 10000000 --distinct 2000

Lines made of words in a random order go through the command by a pipe. Of so many distinct lines,
all after the first ones are repeats, which are answered without the model: the stream itself is
measured. --distinct 0 makes every line another one. Printed are, at each doubling of the lines that
came out, the resident size of the process (with its children) and the lines a second; then the
largest. Linux only.
"""

import argparse
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

WORDS = "a the man woman dog child in on with red blue small street house runs sits plays".split()


def lines(count: int, distinct: int) -> Iterator[bytes]:
    """So many lines, as a file holds them."""
    chance = random.Random(1)
    for number in range(count):
        chosen = number % distinct if distinct else number
        if distinct:
            chance.seed(chosen)
        yield f"{' '.join(chance.choices(WORDS, k=8))} {chosen} .\n".encode()


def feed(stream: BinaryIO, count: int, distinct: int) -> None:
    """Write all lines to the command."""
    with stream:
        for line in lines(count, distinct):
            stream.write(line)


def resident(process: int) -> int:
    """Bytes of memory of a process and of its children."""
    status = Path(f"/proc/{process}/status").read_text()
    size = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS"))
    children = set[int]()
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        children |= set(map(int, path.read_text().split()))
    return 1024 * size + sum(map(resident, children))


def main() -> None:
    """Run the command and watch it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--distinct", type=int, default=2000)
    parser.add_argument("options", nargs="*", help="of dragoman translate, after --")
    given = parser.parse_args()
    command = [sys.executable, "-m", "dragoman", "translate", "--model", given.model]
    process = subprocess.Popen(
        [*command, *given.options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    thread = threading.Thread(target=feed, args=(process.stdin, given.lines, given.distinct))
    thread.start()
    started, largest, count, shown = time.monotonic(), 0, 0, 1000
    for count, _ in enumerate(process.stdout, start=1):
        if count % 10_000 == 0 or count == shown:
            size = resident(process.pid)
            largest = max(largest, size)
            if count >= shown:
                rate = count / (time.monotonic() - started)
                print(f"{count:>12,} lines {size / 1e6:8,.0f} MB {rate:10,.0f} lines/s", flush=True)
                shown *= 2
    thread.join()
    if process.wait() or count != given.lines:
        sys.exit(f"status {process.returncode}, {count:,} of {given.lines:,} lines")
    seconds = time.monotonic() - started
    print(f"{count:>12,} lines, at most {largest / 1e6:,.0f} MB, {count / seconds:,.0f} lines/s")


if __name__ == "__main__":
    main()
