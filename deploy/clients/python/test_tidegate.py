"""Tests of the client without an agent, or with a bad one. That nothing is lost or doubled with the real agent is tested by
crates/collect/tests/live/receiver.

    python3 -m unittest discover -s deploy/clients/python
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import tidegate

HERE = os.path.dirname(os.path.abspath(__file__))
STEP_LIMIT_S = 0.25  # far above what a call takes, far below any timeout of the client


class Receiver:
    """Takes lines on a Unix socket and answers each as it is told to."""

    def __init__(self, path, answer):
        self.lines = []
        self.connections = 0
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            self._answer_all(connection)
        except ConnectionError:
            pass  # the client had enough

    def _answer_all(self, connection):
        with connection, connection.makefile("rb") as lines:
            for number, line in enumerate(lines, 1):
                self.lines.append(json.loads(line))
                answer = self._answer(number)
                if answer is None:
                    return
                connection.sendall(answer)

    def close(self):
        self._socket.close()


def acked(number):
    return b'{"acked":%d}\n' % number


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen within %s s" % seconds)
        time.sleep(0.005)


class WithSocket(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "agent.sock")

    def client(self, **options):
        options.setdefault("job", "7")
        client = tidegate.Client(self.path, **options)
        self.addCleanup(client.close, 0)
        return client

    def receiver(self, answer=acked):
        receiver = Receiver(self.path, answer)
        self.addCleanup(receiver.close)
        return receiver


class Reports(WithSocket):
    def test_a_step_arrives_with_its_fields(self):
        receiver, client = self.receiver(), self.client(rank=3, precision="bf16")
        client.step(12, start=1763712000.5, duration_s=0.5, tokens=8192, loss=2.5)
        self.assertTrue(client.flush(10))
        expected = {"job": "7", "rank": 3, "step": 12, "start": 1763712000.5, "duration_s": 0.5, "tokens": 8192, "loss": 2.5,
                    "precision": "bf16"}
        self.assertEqual(receiver.lines, [expected])
        self.assertEqual(client.stats()["acked"], 1)

    def test_what_is_being_written_is_not_done(self):
        receiver, client = self.receiver(), self.client()
        line, begun, may_go_on = client._line, threading.Event(), threading.Event()

        def slowly(report):
            begun.set()
            may_go_on.wait(10)
            return line(report)

        client._line = slowly
        client.step(1, duration_s=0.5)
        self.assertTrue(begun.wait(10))
        self.assertFalse(client.flush(0.1))
        self.assertEqual(client.stats()["waiting"], 1)
        may_go_on.set()
        self.assertTrue(client.flush(10))
        self.assertEqual((client.stats()["acked"], len(receiver.lines)), (1, 1))

    def test_the_place_in_the_pipeline_is_said_once_and_is_in_each_report(self):
        receiver = self.receiver()
        client = self.client(rank=5, pipeline_stage=1, pipeline_stages=4, micro_batches=16, expert_group=0)
        with client.step_timer(1):
            pass
        client.step(2, duration_s=1, micro_batches=8, squared_tokens=4096)
        self.assertTrue(client.flush(10))
        place = ("pipeline_stage", "pipeline_stages", "micro_batches", "expert_group", "squared_tokens")
        told = [tuple(line.get(field) for field in place) for line in receiver.lines]
        self.assertEqual(told, [(1, 4, 16, 0, None), (1, 4, 8, 0, 4096)])

    def test_the_timer_measures_the_step_and_its_parts(self):
        receiver, client = self.receiver(), self.client()
        before = time.time()
        with client.step_timer(1, tokens=5) as timer:
            with timer.data_wait():
                time.sleep(0.02)
            with timer.compute():
                time.sleep(0.01)
            with timer.compute():
                time.sleep(0.01)
            timer.set(loss=1.5)
        self.assertTrue(client.flush(10))
        (line,) = receiver.lines
        self.assertGreaterEqual(line["data_wait_s"], 0.02)
        self.assertGreaterEqual(line["compute_s"], 0.02)
        self.assertGreaterEqual(line["duration_s"], line["data_wait_s"] + line["compute_s"])
        self.assertGreaterEqual(line["start"], before)
        self.assertEqual((line["tokens"], line["loss"]), (5, 1.5))

    def test_a_step_that_fails_is_not_reported_and_its_exception_goes_on(self):
        receiver, client = self.receiver(), self.client()
        with self.assertRaises(ZeroDivisionError):
            with client.step_timer(1):
                1 / 0
        client.step(2, duration_s=1)
        self.assertTrue(client.flush(10))
        self.assertEqual([line["step"] for line in receiver.lines], [2])

    def test_what_is_no_number_is_left_out_and_counted(self):
        class Tensor:
            def __float__(self):
                raise AssertionError("the client must not wait for a device")

        receiver, client = self.receiver(), self.client()
        client.step(1, duration_s=1, loss=Tensor(), tokens=float("nan"), compute_s=float("inf"))
        client.step(object(), duration_s="long")
        client.step(2, duration_s=1)
        self.assertTrue(client.flush(10))
        self.assertEqual([line.get("step") for line in receiver.lines], [1, 2])
        self.assertNotIn("loss", receiver.lines[0])
        self.assertEqual(client.stats()["ignored_fields"], 3)

    def test_a_refusal_is_counted_and_not_tried_again(self):
        receiver = self.receiver(lambda n: b'{"rejected":%d,"error":"line %d: rank is 1.5"}\n' % (n, n))
        client = self.client()
        client.step(1, duration_s=1)
        self.assertTrue(client.flush(10))
        self.assertEqual((len(receiver.lines), client.stats()["rejected"]), (1, 1))
        self.assertIn("rank is 1.5", client.stats()["last_error"])

    def test_without_a_job_reports_are_dropped_and_the_reason_is_said(self):
        client = self.client(job=None)
        with self.assertLogs("tidegate", "WARNING"):
            client.step(1, duration_s=1)
        self.assertEqual(client.stats()["dropped"], 1)
        self.assertIn("TIDEGATE_JOB", client.stats()["last_error"])


class BadAgents(WithSocket):
    def steps(self, client, count=2000):
        """Reports steps; says how long the slowest call took, seconds."""
        slowest = 0.0
        for n in range(count):
            begun = time.perf_counter()
            client.step(n, start=1763712000 + n, duration_s=1)
            slowest = max(slowest, time.perf_counter() - begun)
        return slowest

    def test_an_absent_agent_costs_the_oldest_reports_and_the_next_says_how_many(self):
        client = self.client(queue_reports=100)
        self.assertLess(self.steps(client, 150), STEP_LIMIT_S)
        self.assertEqual(client.stats()["dropped"], 50)
        receiver = self.receiver()
        wait_for(lambda: client.stats()["acked"] == 100)
        self.assertEqual([line["step"] for line in receiver.lines], list(range(50, 150)))
        self.assertEqual(receiver.lines[-1]["dropped"], 50)
        self.assertEqual(client.stats()["waiting"], 0)

    def test_an_agent_that_hangs_holds_nothing_up(self):
        receiver = self.receiver(lambda n: b"")
        client = self.client(queue_reports=500)
        self.assertLess(self.steps(client), STEP_LIMIT_S)
        wait_for(lambda: receiver.connections == 1)
        begun = time.monotonic()
        self.assertFalse(client.flush(0.2))
        self.assertLess(time.monotonic() - begun, 2)
        self.assertLessEqual(client.stats()["waiting"], 500)

    def test_an_agent_that_does_not_even_accept_holds_nothing_up(self):
        silent = socket.socket(socket.AF_UNIX)
        self.addCleanup(silent.close)
        silent.bind(self.path)
        silent.listen(0)
        client = self.client(queue_reports=500)
        self.assertLess(self.steps(client), STEP_LIMIT_S)

    def test_nonsense_is_not_taken_for_an_answer(self):
        for nonsense in (b"hello\n", b"[]\n", b'{"acked":99}\n', b'{"acked":"x"}\n', b"\xff\xfe\n", b"{}\n", b"x" * 100_000):
            with self.subTest(nonsense[:10]):
                receiver = Receiver(self.path, lambda n, nonsense=nonsense: nonsense)
                client = self.client()
                client.step(1, duration_s=1)
                wait_for(lambda: receiver.connections >= 2)
                self.assertEqual((client.stats()["acked"], client.stats()["waiting"]), (0, 1))
                client.close(0)
                receiver.close()
                os.remove(self.path)

    def test_lines_without_an_answer_are_sent_again_byte_for_byte(self):
        first = self.receiver(lambda n: acked(n) if n <= 3 else None)
        client = self.client()
        for n in range(10):
            client.step(n, start=1763712000.25 + n, duration_s=0.1)
        wait_for(lambda: client.stats()["acked"] >= 3)
        first.close()
        os.remove(self.path)
        second = self.receiver()
        self.assertTrue(client.flush(20))
        last = {json.dumps(line) for line in second.lines}
        for line in first.lines[3:]:
            self.assertIn(json.dumps(line), last)
        self.assertEqual(len({json.dumps(line) for line in first.lines + second.lines}), 10)


class Processes(WithSocket):
    def run_script(self, script, **env):
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=dict(os.environ, PYTHONPATH=HERE, TIDEGATE_SOCKET=self.path, TIDEGATE_JOB="7", **env),
            capture_output=True, text=True, timeout=60, check=False,
        )
        return done, time.monotonic() - begun

    def test_the_last_step_arrives_although_the_program_ends_at_once(self):
        receiver = self.receiver()
        done, _ = self.run_script("import tidegate\nfor n in range(300): tidegate.step(n, duration_s=1)")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([line["step"] for line in receiver.lines], list(range(300)))

    def test_an_exit_waits_a_second_at_most(self):
        _, plain_s = self.run_script("import tidegate")
        for what, answer in (("absent", None), ("hung", lambda n: b"")):
            with self.subTest(what):
                receiver = answer and self.receiver(answer)
                done, took_s = self.run_script("import tidegate\ntidegate.step(1, duration_s=1)")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                # What a busy machine adds to a start is allowed for once more.
                self.assertLess(took_s, plain_s * 2 + tidegate.EXIT_S + 3)
                self.assertEqual(len(receiver.lines) if receiver else 0, 1 if receiver else 0)

    def test_a_fork_sends_its_own_reports_and_not_its_parents(self):
        receiver = self.receiver()
        script = """
            import os, tidegate, warnings
            warnings.simplefilter("ignore")  # Python 3.12 and newer warn of each fork beside a thread
            for n in range(50): tidegate.step(n, duration_s=1)
            child = os.fork()
            for n in range(50): tidegate.step((1000 if child else 2000) + n, duration_s=1)
            assert tidegate.flush(20)
            if child:
                assert os.waitpid(child, 0)[1] == 0
        """
        done, _ = self.run_script(script)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        steps = sorted(line["step"] for line in receiver.lines)
        self.assertEqual(steps, [*range(50), *range(1000, 1050), *range(2000, 2050)])

    def test_a_signal_handler_may_report_in_the_middle_of_a_report(self):
        self.receiver()
        client = self.client()
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, lambda *_: client.step(0, duration_s=1)))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        for n in range(20_000):
            client.step(n, duration_s=1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertTrue(client.flush(30))


class Identities(unittest.TestCase):
    def test_jobs_are_spelled_as_their_scheduler_does(self):
        cases = [
            ({"SLURM_JOB_ID": "12"}, "12"),
            ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "12_3"),
            ({"SLURM_JOB_ID": "13", "SLURM_HET_JOB_ID": "12", "SLURM_HET_JOB_OFFSET": "1"}, "12+1"),
            ({"SLURM_JOB_ID": "12", "TIDEGATE_JOB": "x"}, "x"),
            ({"POD_NAMESPACE": "ml", "POD_NAME": "train-0"}, "ml/train-0"),
            ({}, None),
        ]
        for env, job in cases:
            self.assertEqual(tidegate.Identity(env).job, job, env)

    def test_a_device_is_named_only_where_that_is_certain(self):
        cases = [
            ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "LOCAL_RANK": "1"}, "GPU-b"),
            ({"CUDA_VISIBLE_DEVICES": "MIG-a"}, "MIG-a"),
            ({"CUDA_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1"}, 3),
            ({"CUDA_VISIBLE_DEVICES": "5", "LOCAL_RANK": "1"}, 5),
            ({"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "1", "SLURM_STEP_GPUS": "4,6"}, 6),
            ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "4,6"}, None),
            ({"CUDA_VISIBLE_DEVICES": "0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
            ({"CUDA_VISIBLE_DEVICES": "", "LOCAL_RANK": "1"}, None),
            ({"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "5"}, None),
            ({"LOCAL_RANK": "1"}, None),
        ]
        for env, gpu in cases:
            self.assertEqual(tidegate.Identity(env).gpu, gpu, env)

    def test_ranks(self):
        self.assertEqual(tidegate.Identity({"RANK": "3", "SLURM_PROCID": "9", "WORLD_SIZE": "8"}).rank, 3)
        self.assertEqual(tidegate.Identity({"SLURM_PROCID": "9", "SLURM_NTASKS": "16"}).world_size, 16)
        self.assertIsNone(tidegate.Identity({"RANK": "x"}).rank)


class WithNotices(unittest.TestCase):
    """Notices as the autopilot writes them: JOB.notice in a folder, and a signal."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.saves = []
        self.save = self.saves.append
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))

    def notices(self, **options):
        options = dict({"folder": self.folder, "signal": None, "job": "7", "rank": 0}, **options)
        notices = tidegate.Notices(**options)
        notices._look_at = -1e9
        return notices

    def path(self, name):
        return os.path.join(self.folder, name)

    def tell(self, action="preempt-1", ready_in_s=60.0, job="7"):
        told = {"action": action, "job": job, "ready_by_us": int((time.time() + ready_in_s) * 1e6)}
        with open(self.path(job + ".notice.new"), "w") as file:
            json.dump(told, file)
        os.rename(self.path(job + ".notice.new"), self.path(job + ".notice"))

    def ready(self, job="7"):
        try:
            with open(self.path(job + ".ready")) as file:
                return json.load(file)
        except FileNotFoundError:
            return None


class Noticed(WithNotices):
    def test_a_notice_is_saved_for_once_and_acknowledged_with_the_step(self):
        notices = self.notices()
        self.assertIsNone(notices.check(self.save, 1))
        self.tell()
        notices._look_at = 0
        notice = notices.check(self.save, 2)
        self.assertEqual(self.saves, [notice])
        self.assertEqual((notice.action, notice.saved_step, notice.acknowledged), ("preempt-1", 2, True))
        self.assertTrue(50 < notice.left_s() <= 60)
        self.assertEqual(self.ready(), {"action": "preempt-1", "saved_step": 2})
        self.assertEqual(os.stat(self.path("7.ready")).st_mode & 0o777, 0o644)
        notices._look_at = 0
        self.assertIsNone(notices.check(self.save, 3))
        self.tell("preempt-2")
        notices._look_at = 0
        self.assertEqual(notices.check(self.save, 4).action, "preempt-2")
        self.assertEqual(self.ready(), {"action": "preempt-2", "saved_step": 4})
        self.assertEqual(sorted(os.listdir(self.folder)), ["7.notice", "7.ready"], "nothing is left over")

    def test_nothing_is_acknowledged_before_the_save_is_complete_or_if_it_fails(self):
        def save(notice):
            self.assertIsNone(self.ready())
            self.assertIsNone(notices.check(save, 5), "a check during a save does nothing")
            if notice.action == "bad":
                raise OSError("no space left")
            return 40

        notices = self.notices()
        self.tell("bad")
        with self.assertRaises(OSError):
            notices.check(save, 50)
        self.assertIsNone(self.ready())
        self.tell("good")
        notices._look_at = 0
        self.assertEqual(notices.check(save, 51).saved_step, 40, "the step that save returns counts")
        self.assertEqual(self.ready(), {"action": "good", "saved_step": 40})

    def test_a_step_that_is_none_is_not_claimed(self):
        for step in (None, -1, 1.5, "7", True, 1 << 60):
            self.tell("preempt-%s" % step)
            notice = self.notices().check(lambda notice: None, step)
            self.assertTrue(notice.acknowledged)
            self.assertEqual(self.ready(), {"action": notice.action})

    def test_what_an_earlier_run_was_told_does_not_count(self):
        self.tell(ready_in_s=tidegate._began - time.time() - 1)
        self.assertIsNone(self.notices().check(self.save, 1), "it ran out before this process began")
        self.tell()
        with open(self.path("7.ready"), "w") as file:
            json.dump({"action": "preempt-1", "saved_step": 9}, file)
        self.assertIsNone(self.notices().check(self.save, 1), "it was acknowledged before the job restarted")
        self.tell("preempt-2", job="8")
        self.assertIsNone(self.notices().check(self.save, 1), "another job's")
        self.assertEqual(self.saves, [])

    def test_nonsense_is_no_notice(self):
        for text in ("", "{", "[]", "{}", '{"action": 7, "ready_by_us": 1}', '{"action": "a", "ready_by_us": "soon"}',
                     '{"action": "%s", "ready_by_us": 99999999999999999}' % ("a" * 201), "x" * 100_000, "\udcff"):
            with self.subTest(text[:20]):
                with open(self.path("7.notice"), "w", errors="surrogateescape") as file:
                    file.write(text)
                with self.assertLogs("tidegate", "WARNING"):
                    self.assertIsNone(self.notices().check(self.save, 1))
        os.remove(self.path("7.notice"))
        os.mkfifo(self.path("7.notice"))
        with self.assertLogs("tidegate", "WARNING"):
            self.assertIsNone(self.notices().check(self.save, 1), "nobody writes into the pipe")

    def test_the_file_is_looked_for_once_a_second_and_at_once_after_the_signal(self):
        notices = self.notices(signal="SIGUSR1")
        self.assertIsNone(notices.check(self.save, 1))
        self.tell()
        self.assertIsNone(notices.check(self.save, 2))
        os.kill(os.getpid(), signal.SIGUSR1)
        self.assertEqual(notices.check(self.save, 3).saved_step, 3)

    def test_without_a_folder_the_signal_is_the_notice_and_earlier_handlers_run(self):
        heard = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
        notices = self.notices(folder=None, signal="USR1")
        self.assertIsNone(notices.check(self.save, 1))
        os.kill(os.getpid(), signal.SIGUSR1)
        notice = notices.check(self.save, 2)
        self.assertEqual((notice.action, notice.saved_step, notice.acknowledged, heard), (None, 2, False, [1]))
        self.assertIsNone(notices.check(self.save, 3))

    def test_in_a_thread_there_are_files_alone_and_only_one_thread_saves(self):
        made = []
        with self.assertLogs("tidegate", "WARNING"):
            thread = threading.Thread(target=lambda: made.append(self.notices(signal="USR1")))
            thread.start()
            thread.join()
        (notices,) = made
        self.tell()
        found = []
        threads = [threading.Thread(target=lambda: found.append(notices.check(lambda _: time.sleep(0.2), 1))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sum(notice is not None for notice in found), 1)

    def test_who_saves_later_acknowledges_later(self):
        notices = self.notices()
        self.tell()
        notice = notices.notice()
        self.assertIsNone(notices.notice())
        self.assertIsNone(self.ready())
        self.assertFalse(notice.acknowledge(3, complete=False))
        self.assertIsNone(self.ready())
        self.assertTrue(notice.acknowledge(3))
        self.assertEqual(self.ready(), {"action": "preempt-1", "saved_step": 3})

    def test_a_folder_that_takes_no_file_does_not_stop_the_training(self):
        notices = self.notices()
        self.tell()
        os.mkdir(self.path("7.ready"))
        with self.assertLogs("tidegate", "WARNING"):
            self.assertFalse(notices.check(self.save, 1).acknowledged)
        self.assertEqual(sorted(os.listdir(self.folder)), ["7.notice", "7.ready"])

    def test_a_job_that_is_no_file_name_is_refused(self):
        for job in ("../8", "default/pod", ""):
            with self.assertLogs("tidegate", "WARNING"), unittest.mock.patch.dict(os.environ, {}, clear=True):
                self.assertIsNone(self.notices(job=job).check(self.save, 1))


class Ranks:
    """Values that several ranks, each a thread here, gather from all."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count, timeout=20)
        self._values = [None] * count

    def gather(self, rank, value):
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class SeveralRanks(WithNotices):
    def run_ranks(self, save, steps, count=4, tell_at=3):
        """Runs `count` ranks for `steps` steps; says at which step each found a notice."""
        ranks, found, failed = Ranks(count), [[] for _ in range(count)], []
        told = threading.Barrier(count, timeout=20)

        def train(rank):
            notices = self.notices(rank=rank, every=5, gather=lambda value: ranks.gather(rank, value))
            for n in range(steps):
                if n == tell_at:
                    if rank == 0:
                        self.tell()
                    told.wait()
                notices._look_at = 0
                try:
                    if notices.check(lambda notice: save(rank, notice), n) is not None:
                        found[rank].append(n)
                except OSError:
                    failed.append((rank, n))

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found, failed

    def test_all_save_at_the_same_step_and_the_first_acknowledges_after_the_last(self):
        saved = []

        def save(rank, notice):
            time.sleep(0.05 * rank)
            self.assertIsNone(self.ready(), "rank %s has not saved yet" % rank)
            saved.append(rank)

        found, failed = self.run_ranks(save, 20)
        self.assertEqual((found, failed, sorted(saved)), ([[5]] * 4, [], [0, 1, 2, 3]))
        self.assertEqual(self.ready(), {"action": "preempt-1", "saved_step": 5})

    def test_if_one_rank_fails_nothing_is_acknowledged_and_none_hangs(self):
        def save(rank, notice):
            if rank == 2:
                raise OSError("no space left")

        found, failed = self.run_ranks(save, 20)
        self.assertEqual((found, failed), ([[5], [5], [], [5]], [(2, 5)]))
        self.assertIsNone(self.ready())

    def test_ranks_that_cannot_agree_say_so_and_only_the_first_acknowledges(self):
        with unittest.mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "1"}):
            notices = self.notices(rank=1)
            self.tell()
            with self.assertLogs("tidegate", "WARNING"):
                self.assertFalse(notices.check(self.save, 1).acknowledged)
        self.assertEqual((len(self.saves), self.ready()), (1, None))


class ModuleNotices(unittest.TestCase):
    def test_the_decorator_gives_the_function_back_and_a_check_calls_it(self):
        self.addCleanup(setattr, tidegate, "_notices", None)
        self.addCleanup(setattr, tidegate, "_save_on_notice", None)
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
        self.assertIsNone(tidegate.check_notice(1), "nobody saves")

        @tidegate.on_notice(folder=None, job="7", rank=0)
        def save(notice):
            return 3

        os.kill(os.getpid(), signal.SIGUSR1)
        self.assertEqual(tidegate.check_notice(4).saved_step, 3)
        self.assertEqual(save(None), 3)


if __name__ == "__main__":
    unittest.main()
