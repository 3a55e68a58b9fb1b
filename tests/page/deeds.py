"""What people do on the page. Each takes the run and the addresses of its pages, and fails if it does not work."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

from browser import Tab
from checks import SHOWN, downloaded, is_trace, must, opened, quiet
from sites import Site

RAN = "!document.querySelector('[aria-busy=true]') && document.querySelector('.page.ask .panel table, .page.ask .state')"


def _asked(run, sql: str, also: str = "") -> Tab:
    tab = run.browser.tab()
    opened(tab, f"{run.day.address}/#/ask?{urllib.parse.urlencode({'sql': sql})}{also}")
    return tab


def _ran(tab: Tab):
    tab.evaluate("document.getElementById('run').click()")
    tab.wait_for(RAN)


def a_leak_opens_its_rows_and_its_query(run, addresses):
    tab = run.browser.tab()
    opened(tab, addresses["money"])
    hours = run.day.rows("SELECT sum(gpu_ms) / 3600000.0 AS hours FROM ledger_1d WHERE class = 'communication_stall'")[0]["hours"]
    tab.evaluate("[...document.querySelectorAll('.leak-name')].find(one => one.textContent === 'In collectives').click()")
    tab.wait_for("document.querySelector('.leak-size .big').dataset.formula.endsWith('communication_stall') && !document.querySelector('.skeleton')")
    shown = tab.evaluate("document.querySelector('.leak-size .big').textContent")
    must(abs(float(shown.split()[0]) - hours) < 0.06, f"{shown} is shown, {hours} is in the ledger")
    tab.evaluate("document.querySelector('.leak-size').parentElement.querySelector('a.button').click()")
    tab.wait_for("document.querySelector('.page.ask') && " + RAN)
    rows = tab.evaluate("[...document.querySelectorAll('.page.ask tbody tr')].map(row => Number(row.cells[4].textContent.replaceAll(',', '')))")
    must(rows and abs(sum(rows) - hours) < 0.01, f"the query adds up to {sum(rows)}, the ledger to {hours}")
    quiet(tab)
    tab.close()


def a_query_is_written_completed_and_run_by_keys(run, addresses):
    tab = run.browser.tab()
    opened(tab, addresses["ask"])
    tab.evaluate("document.querySelector('.cm-content').focus()")
    tab.press("a", control=True)
    for letter in "SELECT count(*) AS n FROM job_eve":
        tab.press(letter, letter)
    tab.wait_for("document.querySelector('.cm-tooltip-autocomplete')?.textContent.includes('job_events')")
    run.browser.wait(0.15)  # The list takes no key just after it has come.
    tab.press("Enter", "\r")
    tab.press("Enter", control=True)
    wanted = run.day.rows("SELECT count(*) AS n FROM job_events")[0]["n"]
    tab.wait_for(f"document.querySelector('.page.ask tbody')?.textContent.replaceAll(',', '') === '{wanted}'")
    must("job_events" in urllib.parse.unquote_plus(tab.evaluate("location.hash")), "the address does not have the query")
    quiet(tab)
    tab.close()


def an_answer_is_downloaded_and_plotted(run, addresses):
    sql = "SELECT team, sum(gpu_ms_held) AS held FROM usage_1d GROUP BY team ORDER BY team"
    tab = _asked(run, sql)
    _ran(tab)
    file = downloaded(tab, run.folder, "document.querySelector('[data-format=csv]').click()", ".csv")
    wanted = "team,held\n" + "".join(f"{row['team']},{row['held']}\n" for row in run.day.rows(sql))
    must(file.read_text() == wanted, f"{file.read_text()!r} is not {wanted!r}")
    tab.evaluate("document.querySelector('[data-value=plot]').click()")
    tab.wait_for("document.querySelectorAll('.bars i').length > 0")
    must("view=plot" in tab.evaluate("location.hash"), "a link does not show the plot")
    quiet(tab)
    tab.close()


def a_link_runs_nothing_by_itself(run, addresses):
    tab = _asked(run, "SELECT 41 + 1 AS answer")
    must("came with a link" in tab.evaluate("document.querySelector('.page.ask').textContent"), "it ran")
    _ran(tab)
    must(tab.evaluate("document.querySelector('.page.ask tbody').textContent") == "42", "it did not run")
    tab.close()


def long_work_says_how_long_and_is_cancelled(run, addresses):
    endless = "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value <> b.value + 1"
    said, stop = "document.querySelector('.bar [aria-live]').textContent", "[...document.querySelectorAll('.bar button')].find(one => one.textContent === 'Cancel')"
    tab = _asked(run, endless)
    must(tab.evaluate(f"{stop}.hidden"), "there is nothing to cancel yet")
    for begin, word in (("document.getElementById('run').click()", "Running"), ("document.querySelector('[data-format=csv]').click()", "Writing csv")):
        tab.evaluate(begin)
        tab.wait_for(f"{said}.startsWith('{word}, 2') && !{stop}.hidden")
        tab.evaluate(f"{stop}.click()")
        tab.wait_for(f"{said} === 'Cancelled' && {stop}.hidden")
    tab.wait_for("!document.querySelector('[data-format=csv]').disabled")
    quiet(tab)
    tab.close()


def text_stays_text(run, addresses):
    hostile = "<img src=x onerror=\"document.title=''taken''\"><script>document.title=''taken''</script>"
    tab = _asked(run, f"SELECT '{hostile}' AS name, 1 AS n")
    _ran(tab)
    must(tab.evaluate("document.querySelectorAll('main img, main script').length") == 0, "markup came of text")
    must("<img" in tab.evaluate("document.querySelector('.page.ask tbody').textContent"), "the text is not shown")
    tab.evaluate("document.querySelector('[data-value=plot]').click()")
    run.browser.wait(0.2)
    must("taken" not in tab.evaluate("document.title"), "a script ran")
    refused = tab.evaluate("(() => { try { document.createElement('p').innerHTML = '<b>x</b>'; return false } catch { return true } })()")
    must(refused, "markup can be made from text")
    tab.close()


def whole_numbers_stay_exact(run, addresses):
    tab = _asked(run, "SELECT 9007199254740993 AS n")
    _ran(tab)
    must(tab.evaluate("document.querySelector('.page.ask tbody').textContent") == "9,007,199,254,740,993", "it is rounded")
    tab.close()


def mistakes_are_named(run, addresses):
    tab = _asked(run, "SELECT * FROM job_event")
    _ran(tab)
    tab.wait_for("document.querySelector('.state.denied, .state.error')")
    said = tab.evaluate("document.querySelector('.page.ask').textContent")
    must("job_events" in said, f"it does not say what is near: {said[-300:]}")
    tab.close()


def a_trace_is_what_perfetto_reads(run, addresses):
    tab = run.browser.tab()
    opened(tab, addresses["job"])
    file = downloaded(tab, run.folder, "document.getElementById('trace').click()", ".json", 60)
    job = urllib.parse.unquote(addresses["job"].rsplit("/", 1)[1])
    steps = run.day.rows(f"SELECT count(*) AS n FROM steps WHERE job_id = '{job}'")[0]["n"]
    slices = is_trace(file)
    must(slices > steps > 0, f"{slices} slices for {steps} steps")
    quiet(tab)
    tab.close()
    return f"({slices} slices)"


def keys_do_what_they_say(run, addresses):
    tab = run.browser.tab()
    opened(tab, addresses["money"])
    tab.press("Tab")
    must(tab.evaluate("document.activeElement.className") == "skip", "the first stop is not the link to the page")
    tab.press("g", "g")
    tab.press("n", "n")
    tab.wait_for("document.querySelector('.page.now') && " + SHOWN)
    # News may draw the map anew once more between the two; from then on the focus keeps it.
    for _ in range(10):
        tab.evaluate("document.querySelector('.heatmap canvas').focus()")
        tab.press("ArrowRight")
        if tab.evaluate("document.querySelector('.heatmap [aria-live]').textContent"):
            break
        time.sleep(0.5)
    tab.wait_for("document.querySelector('.heatmap [aria-live]').textContent")
    must("GPU 0" in tab.evaluate("document.querySelector('.heatmap [aria-live]').textContent"), "the map does not say what is chosen")
    theme = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.press("t", "t")
    tab.wait_for(f"getComputedStyle(document.body).backgroundColor !== '{theme}'")
    tab.press("?", "?")
    tab.wait_for("document.querySelector('dialog[open]')")
    tab.press("Escape")
    tab.wait_for("!document.querySelector('dialog')")
    quiet(tab)
    tab.close()


def every_number_has_its_formula(run, addresses):
    tab = run.browser.tab()
    for name in ("money", "now", "job", "autopilot"):
        opened(tab, addresses[name])
        bare = tab.evaluate("[...document.querySelectorAll('.figure dd:not(.below)')].filter(one => !one.querySelector('[data-formula]')).length")
        must(bare == 0, f"{bare} figures of {name} have none")
        bare = tab.evaluate("[...document.querySelectorAll('main thead th.n:not([data-formula])')].map(one => one.textContent).join(', ')")
        must(not bare, f"columns of {name} have none: {bare}")
    tab.evaluate("document.querySelector('.figure [data-formula]').focus()")
    tab.wait_for("!document.getElementById('tip').hidden && document.getElementById('tip').textContent.length > 10")
    tab.close()


def approvals_say_why_they_are_not_to_be_had(run, addresses):
    tab = run.browser.tab()
    opened(tab, addresses["autopilot"])
    note = tab.evaluate("document.getElementById('no-steering')?.textContent ?? ''")
    stops = tab.evaluate("[...document.querySelectorAll('.head button')].map(one => one.disabled)")
    can = not note
    must(can == (not any(stops)) and len(stops) == 1, f"{stops} beside {note!r}")
    tab.close()
    return "(the server takes them)" if can else ""


def somebody_pauses_the_autopilot_and_resumes_it(run, addresses):
    tab = run.browser.tab()
    opened(tab, addresses["autopilot"])
    # The site sets the switch once it has come to the present.
    until = time.monotonic() + 240
    while _standing(run)["switch"].get("by") != "the demo":
        must(time.monotonic() < until, "the site does not come to the present")
        time.sleep(1)
    for label, reason, other in (("Pause", "lunch", "Resume"), ("Resume", "", "Pause")):
        button = "[...document.querySelectorAll('.head button')].find(one => one.textContent.trim() === '%s')"
        tab.wait_for(button % label)
        tab.evaluate(f"{button % label}.click()")
        tab.wait_for("document.querySelector('dialog[open] textarea')")
        tab.evaluate(f"document.querySelector('dialog[open] textarea').value = '{reason}'")
        if label == "Pause":
            _kept(run, tab, "pause")
        tab.evaluate("document.querySelector('dialog[open] form').requestSubmit()")
        tab.wait_for(f"!document.querySelector('dialog[open]') && {button % other}")
        switch = _standing(run)["switch"]
        must(switch["on"] == (label == "Resume"), f"after {label}: {switch}")
        must(label != "Pause" or switch["why"] == reason, f"the reason is lost: {switch}")
    quiet(tab)
    tab.close()


def _standing(run) -> dict:
    with urllib.request.urlopen(f"{run.demo.address}/v1/autopilot", timeout=60) as answer:
        return json.load(answer)


def a_rehearsal_shows_each_owners_changes(run, addresses):
    """What the page draws is what the server tells, and without one the page names the command."""
    with urllib.request.urlopen(f"{run.demo.address}/v1/autopilot/rehearsal", timeout=60) as answer:
        told = json.load(answer)["rehearsal"]
    must(told["policy"] == "auto" and told["owners"], f"it was not kept: {told}")
    tab = run.browser.tab()
    opened(tab, addresses["autopilot"])
    panel = "[...document.querySelectorAll('.panel')].find(one => one.textContent.includes('Rehearsed'))"
    tab.wait_for(f"{panel}.querySelectorAll('tbody tr').length === {len(told['owners'])}")
    names = tab.evaluate(f"[...{panel}.querySelectorAll('tbody tr')].map(row => row.cells[0].firstElementChild.firstChild.textContent)")
    must(names == [owner["owner"] for owner in told["owners"]], f"owners {names}")
    # Where a dot stands, from the scale of its column.
    spots = tab.evaluate(f"[...{panel}.querySelectorAll('tbody tr')].map(row => [...row.querySelectorAll('svg')].map(one => "
                         "[one.querySelector('circle'), one.querySelectorAll('line')[1], one.querySelectorAll('line')[2]].map("
                         "part => ['cx', 'x1', 'x2'].map(name => part.getAttribute(name)).filter(Boolean).map(Number))))")
    for at, key in enumerate(("longer_hours", "more_gpu_hours", "more_preemptions")):
        changes = [owner[key] for owner in told["owners"]]
        low = min(0, *(change["low"] for change in changes))
        high = max(0, *(change["high"] for change in changes))
        low, high = (-1, 1) if low == high else (low, high)
        for change, row in zip(changes, spots):
            dot, zero, line = row[at]
            wanted = [6 + 188 * (value - low) / (high - low) for value in (change["value"], 0, change["low"], change["high"])]
            must(all(abs(a - b) < 1e-6 for a, b in zip([dot[0], zero[0], *line], wanted)), f"{key}: {row[at]}, not {wanted}")
    tab.evaluate(f"{panel}.scrollIntoView()")
    _kept(run, tab, "rehearsal")
    quiet(tab)
    tab.evaluate(f"location = '{run.day.address}/#/autopilot'")
    tab.wait_for("document.querySelector('main').textContent.includes('Nothing was rehearsed yet')")
    must("tidegate autopilot rehearse" in tab.evaluate(f"{panel}.textContent"), "the command is not named")
    quiet(tab)
    tab.close()


def without_a_token_and_without_rows(run, addresses):
    tokens = run.folder / "tokens.toml"
    new = [run.args.tidegate, "token", "new", "--tokens", tokens, "--id", "ann", "--role", "viewer", "--team", "vision"]
    token = subprocess.run(new, check=True, capture_output=True, text=True).stdout.strip()
    with Site(run.args.tidegate, run.folder / "empty", "--ingest", "--no-insight", "--tokens", str(tokens)) as site:
        tab = run.browser.tab()
        opened(tab, f"{site.address}/#/now")
        must("asks for a token" in tab.evaluate("document.querySelector('main').textContent"), "it does not ask for a token")
        _kept(run, tab, "no-token")
        tab.evaluate("document.querySelector('input[name=token]').value = " + repr(token))
        tab.evaluate("document.querySelector('.state form button').click()")
        tab.wait_for("document.getElementById('live').textContent.includes('ann') && " + SHOWN)
        said = tab.evaluate("document.querySelector('main').textContent")
        must("You may not see this" in said, f"a viewer of one team is not told: {said[:300]}")
        tab.errors.clear()
        tab.evaluate("location.hash = '#/money'")
        tab.wait_for("document.querySelector('.page.money') && " + SHOWN)
        must("No GPU time is in the ledger yet" in tab.evaluate("document.querySelector('main').textContent"), "an empty ledger is not told")
        _kept(run, tab, "empty")
        quiet(tab)
        site.close()
        tab.evaluate("location.hash = '#/job'")
        tab.wait_for("document.querySelector('main').textContent.includes('The server does not answer')")
        tab.close()


def _kept(run, tab: Tab, name: str):
    if folder := run.args.screenshots:
        tab.screenshot(Path(folder) / f"{name}.webp")


ALL = [
    a_leak_opens_its_rows_and_its_query, a_query_is_written_completed_and_run_by_keys, an_answer_is_downloaded_and_plotted,
    a_link_runs_nothing_by_itself, long_work_says_how_long_and_is_cancelled, text_stays_text, whole_numbers_stay_exact, mistakes_are_named, a_trace_is_what_perfetto_reads,
    keys_do_what_they_say, every_number_has_its_formula, approvals_say_why_they_are_not_to_be_had,
    somebody_pauses_the_autopilot_and_resumes_it, a_rehearsal_shows_each_owners_changes, without_a_token_and_without_rows,
]
