"""What worked against an earlier version (issue numbers in brackets), as an attacker sends it.

Each attack gets the site and says in a few words how it was answered. It raises `Broken` if the
answer is not one that the attacked must give; whether the site is still whole is checked after it.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import wire
from victim import Broken, Site, now_ms

ATTACKS: list[tuple[str, str, Callable[[Site], str]]] = []
DAY_MS = 86_400_000
QUIET = 20


def attack(number: str, sends: str):
    """Adds the attack to the list; `number` is that of the issue's list."""
    def add(function: Callable[[Site], str]):
        ATTACKS.append((number, sends, function))
        return function
    return add


def refused(answer: tuple[int, bytes], *codes: str) -> str:
    """The answer in a few words, if it is a refusal with a reason, and one of these codes if any."""
    status, said = answer
    try:
        refusal = json.loads(said)
        code, message = refusal["code"], refusal["message"]
    except (ValueError, KeyError, TypeError):
        raise Broken(f"expected a refusal, got {status} {said[:200]!r}") from None
    if not 400 <= status < 600 or codes and code not in codes:
        raise Broken(f"expected {' or '.join(codes) or 'a refusal'}, got {status} {code}: {message}")
    return f"{status} {code}: {message[:70]}"


# Queries.


@attack("3", "one GET from another site's page")
def cross_site(site: Site) -> str:
    query = "/v1/sql?q=SELECT%20count(*)%20FROM%20window_starts('1970','2262',1)"
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    return refused(site.get(query, headers), "cross_origin")


@attack("3", "one POST from another site's page")
def cross_site_post(site: Site) -> str:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    return refused(site.request("POST", "/v1/sql", "SELECT 1", headers), "cross_origin")


@attack("9", "a name that an attacker's DNS points here")
def rebinding(site: Site) -> str:
    return refused(site.request("POST", "/v1/sql", "SELECT 1", {"Host": "evil.example"}), "wrong_host")


@attack("3", "a series of 292 years in milliseconds")
def endless_series(site: Site) -> str:
    return refused(site.sql("SELECT array_length(window_starts(TIMESTAMP '1970-01-01', TIMESTAMP '2262-01-01', 1, "
                            "TIMESTAMP '1970-01-01', TIMESTAMP '2262-01-01'))"), "memory_limit")


@attack("3", "lpad to two GiB, folded while planning")
def long_text(site: Site) -> str:
    return refused(site.sql("SELECT length(lpad('x', 2147483647))"), "memory_limit")


@attack("3", "repeat to four GiB, for each row")
def repeated(site: Site) -> str:
    return refused(site.sql("SELECT sum(length(repeat(v, 400000000))) FROM (VALUES ('0123456789'), ('b'), ('c')) AS t(v)"), "memory_limit")


@attack("7", "levenshtein on long strings, on every processor")
def spinning(site: Site) -> str:
    long = "SELECT levenshtein(lpad(v, 400000, 'ab'), lpad(v, 400000, 'ba')) FROM (VALUES ('x')) AS t(v)"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: site.sql(long, patience_s=120, limit_s=5), range((os.cpu_count() or 1) * 3)))
    since = time.monotonic()
    site.rows("SELECT 1 AS n")
    after_s = time.monotonic() - since
    # Queries yield the processors to everything else, and other tests run beside this one.
    if after_s > 60:
        raise Broken(f"the next query took {after_s:.0f} s")
    return f"{refused(answers[0], 'time_limit')}; the next query took {after_s * 1000:.0f} ms"


@attack("8", "26 nested levels of WITH, names in two cases")
def nested(site: Site) -> str:
    inner = "SELECT 1 AS n"
    for level in range(26):
        name = "a" if level % 2 else "A"
        inner = f"WITH {name} AS ({inner}) SELECT x.n FROM {name} x, {name} y"
    return refused(site.sql(inner))


@attack("8", "30,000 parentheses")
def deep(site: Site) -> str:
    return refused(site.sql("SELECT " + "(" * 30_000 + "1" + ")" * 30_000))


@attack("8", "15,000 rows of VALUES, joined with themselves")
def wide(site: Site) -> str:
    rows = ",".join(f"({n % 10})" for n in range(15_000))
    return refused(site.sql(f"WITH v AS (VALUES {rows}) SELECT count(*) FROM v a, v b, v c"))


@attack("3", "200 queries at once, each joining all rows")
def many_queries(site: Site) -> str:
    query = "SELECT count(*) FROM (SELECT a.fault_class FROM node_events a, node_events b, node_events c, node_events d)"
    with ThreadPoolExecutor(200) as pool:
        answers = [status for status, _ in pool.map(lambda _: site.sql(query, patience_s=300, limit_s=5), range(200))]
    if 400 in answers:
        raise Broken("the query itself is wrong")
    kinds = {status: answers.count(status) for status in sorted(set(answers))}
    if 0 in kinds:
        raise Broken(f"{kinds[0]} connections broke")
    return ", ".join(f"{count} x {status}" for status, count in kinds.items())


# Connections.


@attack("6", "1,100 connections with half a request")
def half_sent(site: Site) -> str:
    sockets = []
    for _ in range(1100):
        half = socket.socket()
        half.settimeout(5)
        try:
            half.connect(("127.0.0.1", site.port))
            half.send(b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\n")
        except OSError:
            pass
        sockets.append(half)
    # While they are open, the server lives and lets others in before long.
    since = time.monotonic()
    while site.get("/healthz")[0] != 200:
        if time.monotonic() - since > 60 or site.server.poll() is not None:
            raise Broken("nobody else got in for a minute")
        time.sleep(0.5)
    waited_s = time.monotonic() - since
    for half in sockets:
        half.close()
    return f"others got in after {waited_s:.1f} s"


@attack("6", "a body of one byte a second")
def slow_body(site: Site) -> str:
    with socket.create_connection(("127.0.0.1", site.port), timeout=90) as slow:
        slow.send(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"
                  b"Content-Length: 100000\r\n\r\n")
        since = time.monotonic()
        try:
            while time.monotonic() - since < 80:
                slow.send(b"x")
                slow.settimeout(1)
                try:
                    if said := slow.recv(100):
                        return f"{said[9:12].decode()} after {time.monotonic() - since:.0f} s"
                    return f"closed after {time.monotonic() - since:.0f} s"
                except TimeoutError:
                    continue
        except OSError:
            return f"closed after {time.monotonic() - since:.0f} s"
    raise Broken("a body may take for ever")


# Messages.


@attack("1", "9,901 invented jobs of 1,032 ranks")
def invented_jobs(site: Site) -> str:
    source, answers = "agent/n2@tidegate", set()
    at = now_ms()
    for first in range(0, 9901, 1000):
        numbers = range(first, min(first + 1000, 9901))
        records = [wire.record("step", f"tidegate/{job}", at, {2: str(job), 4: job % 1032, 5: 1032, 6: 1, 7: 1_000_000},
                               source, job) for job in numbers]
        status, said = site.append(wire.append("step", source, first, records))
        answers.add(status)
        if status not in (200, 403, 413, 429):
            raise Broken(f"answered {status}: {said[:200]!r}")
    time.sleep(QUIET)
    return f"answered {sorted(answers)}; {site.memory_mib():.0f} MiB"


@attack("5", "one event of the year 1")
def year_1(site: Site) -> str:
    at = -62_135_596_800_000
    record = wire.record("job", "tidegate/77", at, {2: 3, 3: "77", 4: wire.Signed(1), 13: 8000}, "watch/a", 0)
    since = time.monotonic()
    status, said = site.append(wire.append("job", "watch/a", 0, [record]))
    if status not in (200, 400, 403):
        raise Broken(f"answered {status}: {said[:200]!r}")
    site.check()
    return f"{status}; the site went on within {time.monotonic() - since:.0f} s"


@attack("15", "eight MiB of empty records")
def empty_records(site: Site) -> str:
    before = site.memory_mib()
    body = wire.append("node", "agent/n3@tidegate", 0, []) + b"\x32\x00" * (8 << 19)
    said = refused(site.append(body))
    if (grown := site.memory_mib() - before) > 200:
        raise Broken(f"{said}, but the server grew by {grown:.0f} MiB")
    return f"{said}; {max(grown, 0):.0f} MiB more"


@attack("15", "bytes at random")
def noise(site: Site) -> str:
    return "; ".join({refused(site.append(os.urandom(size))) for size in (1, 100, 100_000)})


# Journal.


@attack("2", "a forged lease of generation 2^64-1")
def forged_lease(site: Site) -> str:
    generation, until = (1 << 64) - 1, now_ms() + 365 * DAY_MS
    lease = {"holder": "evil", "generation": generation, "until_us": until * 1000}
    body = json.dumps({"at_us": now_ms() * 1000, "generation": generation, "event": {"Lease": lease}})
    fields = {2: 1, 3: generation, 4: "evil", 5: wire.Signed(until), 34: body}
    return forged(site, fields)


@attack("2", "a forged health signal that n1 is bad")
def forged_signal(site: Site) -> str:
    record = wire.record("node_signal", "tidegate/n1", now_ms(), {2: 3, 3: "n1", 4: 990_000}, "insight/x", 0)
    answer = site.append(wire.append("node_signal", "insight/x", 0, [record]))
    return refused(answer, "forbidden") if answer[0] != 200 else judge(site, "accepted")


def forged(site: Site, fields: dict[int, object]) -> str:
    record = wire.record("autopilot", "tidegate", now_ms(), fields, "autopilot/evil", 0)
    answer = site.append(wire.append("autopilot", "autopilot/evil", 0, [record]))
    return refused(answer, "forbidden") if answer[0] != 200 else judge(site, "accepted")


def judge(site: Site, said: str) -> str:
    """After a forged event that was accepted: what came of it."""
    time.sleep(QUIET)
    site.check()
    return f"{said}, without effect"
