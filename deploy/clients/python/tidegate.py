"""Reports training steps to the Tidegate agent on this node, and saves when the job gets notice.

One file, standard library only, Python 3.8 or newer. Copy it next to the training script, then:

    import tidegate

    for n, batch in enumerate(loader):
        with tidegate.step_timer(n, tokens=batch.numel()) as t:
            ...

or, if the times are already known:

    tidegate.step(n, duration_s=0.41, data_wait_s=0.02, tokens=8192)

To save before the autopilot stops, restarts or shrinks the job (see `on_notice`):

    @tidegate.on_notice
    def save(notice):
        torch.save(..., "checkpoint.pt")

    for n, batch in enumerate(loader):
        ...
        tidegate.check_notice(n)

or, if something else saves, `notice = tidegate.notice()` and then `notice.acknowledge(n)`.

No report blocks the training loop or raises into it. Reports are queued, and a background thread sends them to the
agent's Unix socket. While the agent is away, up to 10,000 reports wait; then the oldest are dropped and counted, and the
next report has their number (`dropped`). Unacknowledged reports are sent again; the agent recognizes repeated ones.

Job, rank and GPU are read from the environment (see `Identity`) unless given to `configure` or to a call.
"""

import atexit
import collections
import json
import logging
import math
import numbers
import os
import re
import signal as signals
import socket
import sys
import tempfile
import threading
import time

__all__ = ["Client", "Notice", "Notices", "check_notice", "configure", "flush", "notice", "on_notice", "stats",
           "step", "step_timer"]

DEFAULT_SOCKET = "/run/tidegate/agent.sock"
# Most reports that wait, including sent but unacknowledged ones. About 6 MiB.
QUEUE_REPORTS = 10_000
# Reports sent before waiting for an answer.
BATCH_REPORTS = 128
# Timeouts for connecting and for sending or an answer; pause after a failure, at first and at most. Seconds.
CONNECT_S, ANSWER_S = 1.0, 10.0
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 5.0
# An idle thread checks the queue this often even if it was not woken.
IDLE_S = 5.0
# Seconds to wait for the last reports at interpreter exit.
EXIT_S = 1.0
# Longest accepted answer line.
ANSWER_BYTES = 64 << 10
# Longest accepted notice, and longest id of an action in it.
NOTICE_BYTES, ACTION_CHARS = 4096, 200
# A notice's file is looked for this often at most, seconds.
NOTICE_LOOK_S = 1.0
# Several ranks agree on a notice at each such step boundary.
AGREE_EVERY = 10

# A notice that ran out before this process began was for an earlier run of the job.
_began = time.time()
_log = logging.getLogger("tidegate")


class Identity:
    """Job, rank, world size and GPU of this process, from the environment. Unknown values are None."""

    def __init__(self, env=None):
        env = os.environ if env is None else env
        self.job = _job(env)
        self.rank = _first_int(env, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
        self.world_size = _first_int(env, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
        self.gpu = _gpu(env)


def _job(env):
    """The job's id as its scheduler writes it: 123, 123_4 of an array, 123+1 of a heterogeneous job, NAMESPACE/POD."""
    if env.get("TIDEGATE_JOB"):
        return env["TIDEGATE_JOB"]
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return array + "_" + task
    leader, offset = env.get("SLURM_HET_JOB_ID"), env.get("SLURM_HET_JOB_OFFSET")
    if leader and offset:
        return leader + "+" + offset
    if env.get("SLURM_JOB_ID"):
        return env["SLURM_JOB_ID"]
    # Set by the pod's manifest from metadata.namespace and metadata.name.
    if env.get("POD_NAMESPACE") and env.get("POD_NAME"):
        return env["POD_NAMESPACE"] + "/" + env["POD_NAME"]
    return None


def _first_int(env, *names):
    for name in names:
        try:
            return int(env[name])
        except (KeyError, ValueError):
            continue
    return None


def _gpu(env):
    """The device of this process: its UUID if named, else its number in the node if that is certain."""
    local = _first_int(env, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK") or 0
    visible = [name.strip() for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not visible:
        return None
    place = local if len(visible) > 1 else 0
    if place >= len(visible):
        return None
    if visible[place].startswith(("GPU-", "MIG-")):
        return visible[place]
    if not visible[place].isdigit():
        return None
    # Slurm with ConstrainDevices counts CUDA_VISIBLE_DEVICES from 0 within the job; these are numbers in the node.
    listed = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS")
    if listed:
        in_node = [name for name in re.split(r"[,\s]+", listed) if name.isdigit()]
        number = int(visible[place])
        return int(in_node[number]) if len(in_node) == len(visible) and number < len(in_node) else None
    # Containers also count from 0.
    if env.get("KUBERNETES_SERVICE_HOST"):
        return None
    return int(visible[place])


class Client:
    """A queue of reports and the thread that sends them. The module's `step` and `step_timer` use a default one."""

    def __init__(self, path=None, queue_reports=QUEUE_REPORTS, **defaults):
        self._path = path or os.environ.get("TIDEGATE_SOCKET") or DEFAULT_SOCKET
        self._queue_reports = queue_reports
        self._given = defaults
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._at_exit)

    def _reset(self):
        """Begins anew; in a forked child, whose parent keeps its reports and sends them itself."""
        identity = Identity()
        self._defaults = {
            "job": identity.job,
            "rank": 0 if identity.rank is None else identity.rank,
            "world_size": identity.world_size,
            "gpu": identity.gpu,
        }
        self._defaults.update(self._given)
        # Reentrant: a signal handler may report in the middle of a report.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._idle = False
        self._waiting = collections.deque()  # reports, or their lines if they were sent before
        self._taken = 0  # reports that are being written, neither waiting nor sent
        self._sent = collections.deque()  # lines without an answer
        self._thread = None
        self._dropped = 0
        self._counts = {"reported": 0, "acked": 0, "rejected": 0, "connections": 0, "ignored_fields": 0}
        self._last_error = None

    # In the training loop

    def step(self, step, start=None, **fields):
        """Queues a report of one step. `start` is when it began, seconds since 1970; by default `duration_s` before now."""
        try:
            if start is None:
                start = time.time() - _seconds(fields)
            report = dict(self._defaults, step=step, start=start)
            report.update(fields)
            with self._lock:
                if report.get("job") is None:
                    self._no_job()
                    return
                while self._waiting and self._kept() >= self._queue_reports:
                    self._waiting.popleft()
                    self._dropped += 1
                if self._dropped:
                    report["dropped"] = self._dropped
                self._waiting.append(report)
                self._counts["reported"] += 1
            if self._idle:
                self._wake.set()
            elif self._thread is None:
                self._begin()
        except Exception as error:  # noqa: BLE001: never disturb the training
            self._last_error = repr(error)

    def step_timer(self, step, **fields):
        """Measures a step: `with client.step_timer(n) as t:`, and inside it `with t.data_wait():` and the other parts."""
        return _StepTimer(self, step, fields)

    def flush(self, timeout=EXIT_S):
        """Waits until all is acknowledged, `timeout` seconds at most; says whether it is."""
        try:
            deadline = time.monotonic() + timeout
            self._wake.set()
            while self._unfinished() and time.monotonic() < deadline:
                time.sleep(0.002)
            return not self._unfinished()
        except Exception as error:  # noqa: BLE001
            self._last_error = repr(error)
            return False

    def stats(self):
        """Counts since the start: reported, acked, rejected, dropped, waiting, connections, ignored_fields; last_error."""
        with self._lock:
            return dict(self._counts, dropped=self._dropped, waiting=self._kept(), last_error=self._last_error)

    def close(self, timeout=EXIT_S):
        """Flushes and ends the thread."""
        self.flush(timeout)
        self._closing.set()
        self._wake.set()

    def _no_job(self):
        if self._last_error is None:
            self._last_error = "no job is known: set TIDEGATE_JOB, or call tidegate.configure(job=...)"
            _log.warning("%s; step reports are dropped", self._last_error)
        self._dropped += 1

    def _kept(self):
        """Reports without an answer; the lock is held."""
        return len(self._waiting) + self._taken + len(self._sent)

    def _unfinished(self):
        # With the lock: the thread moves reports from one place to the next.
        with self._lock:
            return self._kept() > 0

    def _begin(self):
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="tidegate", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except BaseException:
                    # No thread can start during interpreter exit.
                    self._thread = None
                    raise

    def _at_exit(self):
        if self._thread is not None and not self._closing.is_set():
            self.flush(EXIT_S)
        self._closing.set()
        self._wake.set()

    # In the thread

    def _run(self):
        retry_s = RETRY_FIRST_S
        while not self._closing.is_set():
            if not self._unfinished():
                self._idle = True
                # A report queued before the flag was set woke nobody: check again.
                if not self._unfinished():
                    self._wake.wait(IDLE_S)
                self._idle = False
                self._wake.clear()
                continue
            try:
                self._connected()
                retry_s = RETRY_FIRST_S
            except Exception as error:  # noqa: BLE001: absent, hanging, or an invalid answer
                self._last_error = repr(error)
                if self._good:
                    retry_s = RETRY_FIRST_S
                self._closing.wait(retry_s)
                retry_s = min(retry_s * 2, RETRY_MOST_S)

    def _connected(self):
        """Sends over one connection until it fails or all is done and it stays idle."""
        self._good = False
        with self._lock:
            # Reports unacknowledged on the last connection go first, in order.
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONNECT_S)
            connection.connect(self._path)
            connection.settimeout(ANSWER_S)
            self._counts["connections"] += 1
            answers = _Answers(connection)
            while not self._closing.is_set():
                if self._send(connection):
                    self._settle(answers)
                    self._good = True
                    continue
                self._idle = True
                if not self._waiting:
                    self._wake.wait(IDLE_S)
                self._idle = False
                self._wake.clear()

    def _send(self, connection):
        """Sends the next reports; says whether there were any."""
        with self._lock:
            count = min(BATCH_REPORTS, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            self._taken = count
        lines = []
        for report in batch:
            try:
                lines.append(report if isinstance(report, bytes) else self._line(report))
            except Exception as error:  # noqa: BLE001: drop a report that cannot be encoded instead of retrying it for ever
                self._last_error = repr(error)
                self._dropped += 1
        with self._lock:
            self._sent.extend(lines)
            self._taken = 0
        if lines:
            connection.sendall(b"".join(lines))
        return bool(batch)

    def _settle(self, answers):
        """Waits for an answer to each line that was sent."""
        while self._sent:
            answer = json.loads(answers.next())
            if not isinstance(answer, dict) or ("acked" not in answer and "rejected" not in answer):
                raise ValueError("the agent answers nonsense: %.80r" % (answer,))
            if answers.count != answer.get("acked", answer.get("rejected")):
                raise ValueError("the agent's answers are out of order")
            with self._lock:
                if self._sent:
                    self._sent.popleft()
                self._counts["acked" if "acked" in answer else "rejected"] += 1
            if "error" in answer:
                self._last_error = str(answer["error"])[:500]

    def _line(self, report):
        line = {}
        for name, value in report.items():
            if value is None:
                continue
            line[name] = _plain(value)
            if line[name] is None:
                # Reading a tensor would wait for its device: pass loss.item() instead. NaN is not JSON.
                del line[name]
                self._counts["ignored_fields"] += 1
                self._last_error = "%s is %s: not a number or text" % (name, type(value).__name__)
        return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _plain(value):
    """A text or number as JSON has it; None for anything else."""
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        value = float(value)
        return value if math.isfinite(value) else None
    return None


def _seconds(fields):
    for name, unit_s in (("duration_s", 1.0), ("duration_ms", 1e-3), ("duration_us", 1e-6)):
        if fields.get(name) is not None:
            return fields[name] * unit_s
    return 0.0


class _Answers:
    """Lines from a connection."""

    def __init__(self, connection):
        self._connection = connection
        self._rest = b""
        self.count = 0

    def next(self):
        while b"\n" not in self._rest:
            if len(self._rest) > ANSWER_BYTES:
                raise ValueError("the agent answers nonsense")
            read = self._connection.recv(16 << 10)
            if not read:
                raise ConnectionError("the agent closed the connection")
            self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        self.count += 1
        return line


class _StepTimer:
    """Measures one step and its parts. A step that ends with an exception is not reported: it was not done."""

    def __init__(self, client, step, fields):
        self._client = client
        self._step = step
        self._fields = fields
        self._parts = {}

    def __enter__(self):
        self._start = time.time()
        self._begun = time.perf_counter()
        return self

    def __exit__(self, kind, value, trace):
        duration_s = time.perf_counter() - self._begun
        if kind is None:
            fields = dict(self._parts)
            fields.update(self._fields)
            self._client.step(self._step, start=self._start, duration_s=duration_s, **fields)
        return False

    def set(self, **fields):
        """Adds what became known during the step: `t.set(loss=loss.item())`."""
        self._fields.update(fields)

    def compute(self):
        """Time of this rank's own work, before collectives wait for others."""
        return _Part(self._parts, "compute_s")

    def communication(self):
        return _Part(self._parts, "communication_s")

    def data_wait(self):
        """Time spent waiting for the next batch."""
        return _Part(self._parts, "data_wait_s")

    def checkpoint(self):
        return _Part(self._parts, "checkpoint_s")

    def restore(self):
        """Loading a checkpoint, as after a restart; no part of `checkpoint` then."""
        return _Part(self._parts, "restore_s")


class _Part:
    def __init__(self, parts, name):
        self._parts = parts
        self._name = name

    def __enter__(self):
        self._begun = time.perf_counter()

    def __exit__(self, kind, value, trace):
        self._parts[self._name] = self._parts.get(self._name, 0.0) + time.perf_counter() - self._begun
        return False


class Notice:
    """The autopilot is about to stop, restart or shrink this job, which may save first."""

    def __init__(self, notices, action=None, ready_by=None):
        self._notices = notices
        # Id of the autopilot's action. None: only a signal came, which nothing can acknowledge.
        self.action = action
        # When the job is disturbed whether it saved or not, seconds since 1970. None: not known.
        self.ready_by = ready_by
        # Step that the checkpoint holds. None: none was written, or its step is not known.
        self.saved_step = None
        self.acknowledged = False

    def left_s(self):
        """Seconds until the job is disturbed, 0 at least; None if that is not known."""
        return None if self.ready_by is None else max(0.0, self.ready_by - time.time())

    def acknowledge(self, step=None, complete=True):
        """Says that the checkpoint of `step` is complete; the job may be disturbed from now on. Says whether that was written.

        Every rank calls it after its own part of the save, with `complete=False` if that failed. They wait for each other,
        and the first writes the acknowledgement if all are complete.
        """
        return self._notices._acknowledge(self, _step(step), complete)


class Notices:
    """Looks for notices at step boundaries. The module's `notice` and `on_notice` use a default one."""

    def __init__(self, folder=None, signal="SIGUSR1", every=AGREE_EVERY, gather=None, job=None, rank=None):
        identity = Identity()
        self._folder = folder or os.environ.get("TIDEGATE_NOTICES")
        self._job = job or identity.job
        self._rank = identity.rank if rank is None else rank
        self._ranks = 1 if identity.world_size is None else identity.world_size
        self._every = max(1, int(every))
        self._gather = gather
        self._signalled = False
        self._handled = None  # the last action that was handled
        self._look_at = 0.0
        self._checks = 0
        self._warned = set()
        # Held while a boundary is checked: a check inside a save, or in another thread, does nothing.
        self._checking = threading.Lock()
        if self._folder and not (self._job and re.fullmatch(r"[A-Za-z0-9_+]+", self._job)):
            self._warn("the job %r is no job of Slurm: its notices are not looked for", self._job)
            self._folder = None
        self._listen(signal)

    def notice(self):
        """A step boundary: a new notice, which every rank gets at the same boundary; otherwise None."""
        if not self._checking.acquire(blocking=False):
            return None
        try:
            return self._look()
        finally:
            self._checking.release()

    def check(self, save, step=None):
        """A step boundary: if the job got notice, calls `save`, acknowledges, and returns the notice; otherwise None.

        What `save` raises goes on to the caller, and nothing is acknowledged.
        """
        if not self._checking.acquire(blocking=False):
            return None
        try:
            notice = self._look()
            if notice is None:
                return None
            saved, complete = None, False
            try:
                saved = save(notice)
                complete = True
            finally:
                notice.acknowledge(step if _step(saved) is None else saved, complete)
            return notice
        finally:
            self._checking.release()

    def _listen(self, name):
        if name is None:
            return
        number = getattr(signals, name if name.startswith("SIG") else "SIG" + name)
        before = signals.getsignal(number)

        def handler(*arguments):
            # Takes no lock and does no work: it may interrupt anything.
            self._signalled = True
            if callable(before):
                before(*arguments)

        try:
            signals.signal(number, handler)
        except ValueError:
            self._warn("not in the main thread, so %s is not caught; notices are found in the folder alone", name)

    def _warn(self, text, *values):
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text, *values)

    def _is_first(self):
        distributed = _torch_distributed()
        rank = self._rank if distributed is None else distributed.get_rank()
        return not rank

    def _look(self):
        self._checks += 1
        gather = self._gather or _torch_gather()
        if gather is None:
            if self._ranks > 1:
                self._warn("torch.distributed is not initialized and no `gather` was given: each rank saves by itself")
            told = self._told(is_listener=True)
        elif (self._checks - 1) % self._every:
            return None
        else:
            found = [told for told in gather(self._told(is_listener=self._is_first())) if told is not None]
            # One with an action, which can be acknowledged, before a mere signal.
            told = max(found, key=lambda told: told[0] is not None, default=None)
        if told is None:
            return None
        self._handled, self._signalled = told[0], False
        return Notice(self, *told)

    def _told(self, is_listener):
        """Action and time of a notice that was not handled yet. With a folder its file decides, and a signal only says when
        to look.
        """
        signalled, self._signalled = self._signalled, False
        if self._folder is None:
            return (None, None) if signalled else None
        now = time.monotonic()
        if not is_listener or (now < self._look_at and not signalled):
            return None
        self._look_at = now + NOTICE_LOOK_S
        told = self._read("notice")
        if told is None:
            return None
        action, ready_by_us = told.get("action"), told.get("ready_by_us")
        if not isinstance(action, str) or not 0 < len(action) <= ACTION_CHARS or not isinstance(ready_by_us, int):
            self._warn("a notice without an action or a time is ignored")
            return None
        if action == self._handled or ready_by_us / 1e6 < _began:
            return None
        acknowledged = self._read("ready")
        if acknowledged is not None and acknowledged.get("action") == action:
            self._handled = action  # before this run of the job
            return None
        return action, ready_by_us / 1e6

    def _path(self, what):
        return os.path.join(self._folder, "%s.%s" % (self._job, what))

    def _read(self, what):
        """The object in the job's file; None if there is none."""
        try:
            # Of a pipe nothing is awaited.
            with open(os.open(self._path(what), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                told = json.loads(file.read(NOTICE_BYTES))
            if not isinstance(told, dict):
                raise ValueError("it is no JSON object")
            return told
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            self._warn("%s cannot be read: %s", self._path(what), error)
            return None

    def _acknowledge(self, notice, step, complete):
        gather = self._gather or _torch_gather()
        # Also a barrier: nothing is acknowledged before each rank has saved its part.
        all_complete = bool(complete) if gather is None else all(gather(bool(complete)))
        if all_complete:
            notice.saved_step = step
            if notice.action is not None and self._is_first():
                self._write_ready(notice)
        return notice.acknowledged

    def _write_ready(self, notice):
        ready = {"action": notice.action}
        if notice.saved_step is not None:
            ready["saved_step"] = notice.saved_step
        path = None
        try:
            # Complete or not there: it is renamed once it is written.
            number, path = tempfile.mkstemp(prefix=".%s.ready." % self._job, dir=self._folder)
            with open(number, "w") as file:
                json.dump(ready, file)
                file.flush()
                os.fsync(number)
            os.chmod(path, 0o644)  # the autopilot may be another user
            os.replace(path, self._path("ready"))
            notice.acknowledged = True
        except OSError as error:
            _log.warning("the notice of %s is not acknowledged: %s", notice.action, error)
            if path is not None and os.path.exists(path):
                os.unlink(path)


def _step(value):
    """A number of a step; None for anything else."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and 0 <= value <= 1 << 53:
        return int(value)
    return None


def _torch_distributed():
    """torch.distributed, if this program uses it for several ranks. Never imports it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def _torch_gather():
    distributed = _torch_distributed()
    if distributed is None:
        return None

    def gather(value):
        values = [None] * distributed.get_world_size()
        distributed.all_gather_object(values, value)
        return values

    return gather


_notices = None
_save_on_notice = None


def notice(**options):
    """A step boundary, in the order of steps and on every rank: a new notice of the job, or None.

    Save, then call the notice's `acknowledge(step)` on every rank. Call this once before the first step, in the main thread:
    until then the site's signal would end the process. Options as for `on_notice`, in the first call.
    """
    global _notices
    if _notices is None:
        _notices = Notices(**options)
    return _notices.notice()


def on_notice(save=None, **options):
    """Calls `save(notice)` at the step boundary after the job got notice, as in `@tidegate.on_notice`.

    Every rank calls it, so it may save together. It returns the step that its checkpoint holds, or None for the step given
    to `check_notice`. Afterwards the training goes on until the autopilot acts: a job that ends is not started again.

    Options: `folder` is the site's `[slurm.notice] folder` (default: the environment's TIDEGATE_NOTICES); `signal` its
    signal, or None; `every`: several ranks agree at each such boundary; `gather(value)` gives all ranks' values on each
    rank, where that is not torch.distributed's work; `job` and `rank` if the environment does not tell them. Call it in the
    main thread, or the signal is not caught.
    """
    global _notices, _save_on_notice
    if save is None:
        return lambda save: on_notice(save, **options)
    _notices, _save_on_notice = Notices(**options), save
    return save


def check_notice(step=None):
    """A step boundary, in the order of steps and on every rank; see `Notices.check`."""
    return None if _save_on_notice is None else _notices.check(_save_on_notice, step)


_client = None
_client_lock = threading.Lock()


def _default():
    global _client
    if _client is None:
        with _client_lock:
            if _client is None:
                _client = Client()
    return _client


def configure(path=None, queue_reports=QUEUE_REPORTS, **defaults):
    """Sets the agent's socket and fields of every report (job, rank, flops_convention, precision …). Call it first.

    A job with a pipeline gives pipeline_stage (from 0), pipeline_stages and micro_batches, one with experts expert_group: ranks
    are compared with those that do the same work.
    """
    global _client
    with _client_lock:
        before, _client = _client, Client(path, queue_reports, **defaults)
    if before is not None:
        before.close()


def step(step, start=None, **fields):
    """Reports one step, see `Client.step`."""
    _default().step(step, start, **fields)


def step_timer(step, **fields):
    """Measures and reports one step, see `Client.step_timer`."""
    return _default().step_timer(step, **fields)


def flush(timeout=EXIT_S):
    """Waits for the last reports, see `Client.flush`."""
    return _default().flush(timeout)


def stats():
    """Counts since the start, see `Client.stats`."""
    return _default().stats()
