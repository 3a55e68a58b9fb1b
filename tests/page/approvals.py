"""People decide on the page about actions that wait for them, on a real Slurm."""

import time
from pathlib import Path

from asking import Asking, slurm_is_there, wait_until
from browser import Tab
from checks import SHOWN, accessible, must, opened, quiet

BUTTON = "[...document.querySelectorAll('main button')].find(one => one.textContent.trim() === '%s')"
FACTS = "(document.querySelector('.facts')?.textContent ?? '')"
MOMENTS = "(document.querySelector('.moments')?.textContent ?? '')"


def _comes_in(run, site: Asking, who: str) -> Tab:
    tab = run.browser.tab()
    opened(tab, f"{site.address}/#/autopilot")
    tab.evaluate(f"document.querySelector('input[name=token]').value = '{site.tokens[who]}'")
    tab.evaluate("document.querySelector('.state form button').click()")
    tab.wait_for(f"document.getElementById('live').textContent.includes('{who}') && {SHOWN}")
    # Before the token came, what was asked was refused.
    tab.errors.clear()
    return tab


def _chosen(tab: Tab, node: str):
    """The decision on a node that waits for a person, as the page comes by it: by itself."""
    row = f"[...document.querySelectorAll('main tbody tr')].find(row => row.textContent.includes('{node}') && row.textContent.includes('waits for approval'))"
    tab.wait_for(row, 60)
    tab.evaluate(f"{row}.click()")
    tab.wait_for(f"document.querySelector('main').textContent.includes('Drain node node:{node}') && {BUTTON % 'Approve'} && {SHOWN}")


def _says(tab: Tab, label: str, reason: str):
    tab.wait_for(f"{BUTTON % label}?.disabled === false")
    tab.evaluate(f"{BUTTON % label}.click()")
    tab.wait_for("document.querySelector('dialog[open] textarea')")
    tab.evaluate(f"document.querySelector('dialog[open] textarea').value = {reason!r}")
    tab.evaluate("document.querySelector('dialog[open] form').requestSubmit()")
    tab.wait_for("!document.querySelector('dialog[open]')")


def somebody_rejects_and_approves_what_waits(run, axe: str) -> str:
    if not slurm_is_there():
        return "(skipped: Slurm is missing)"
    with Asking(run.args.tidegate, run.folder / "asking") as site:
        tab = _comes_in(run, site, "anna")
        _says(tab, "Resume", "")
        tab.wait_for(BUTTON % "Pause")

        site.is_bad("n3")
        _chosen(tab, "n3")
        accessible(tab, axe)
        _kept(run, tab, "waiting")
        # A reason is asked for: without one the question stays.
        tab.wait_for(f"{BUTTON % 'Reject'}?.disabled === false")
        tab.evaluate(f"{BUTTON % 'Reject'}.click()")
        tab.wait_for("document.querySelector('dialog[open] textarea')")
        tab.evaluate("document.querySelector('dialog[open] form').requestSubmit()")
        must(tab.evaluate("document.querySelector('dialog[open]') !== null"), "it is rejected without a reason")
        tab.evaluate("document.querySelector('dialog[open]').close()")
        _says(tab, "Reject", "the vendor comes at noon")
        tab.wait_for(f"/Rejected by.*anna over HTTP, .* UTC: the vendor comes at noon/.test({FACTS}) && {MOMENTS}.includes('Rejected')", 60)
        _kept(run, tab, "rejected")

        since = time.monotonic()
        action = site.is_bad("n4")
        must(not site.is_drained("n4"), "it is drained before somebody approves")
        _chosen(tab, "n4")
        _says(tab, "Approve", "")
        wait_until("the node is drained", lambda: site.is_drained("n4"))
        tab.wait_for(f"/Approved by.*anna over HTTP, .* UTC/.test({FACTS}) && {MOMENTS}.includes('Approved') && {MOMENTS}.includes('Read back as done')", 60)
        took_s = time.monotonic() - since
        accessible(tab, axe)
        _kept(run, tab, "approved")
        quiet(tab)
        tab.close()
        must(not site.is_drained("n3"), "what was rejected is done")
        [row] = site.rows(f"SELECT approved_by, state FROM decisions WHERE action = '{action}'")
        must(row == {"approved_by": "anna over HTTP", "state": "VERIFIED"}, f"the tables say {row}")

        # One who may not decide sees why.
        site.is_bad("n2")
        tab = _comes_in(run, site, "vera")
        _chosen(tab, "n2")
        must(tab.evaluate(f"{BUTTON % 'Approve'}.disabled && {BUTTON % 'Reject'}.disabled"), "a viewer may decide")
        must("An operator decides" in tab.evaluate("document.querySelector('main').textContent"), "it does not say who may")
        quiet(tab)
        tab.close()
    return f"(from the signal to done in {took_s:.0f} s)"


def _kept(run, tab: Tab, name: str):
    if folder := run.args.screenshots:
        tab.screenshot(Path(folder) / f"{name}.webp", whole=True)
