"""Jobs in child processes of this machine, with Luigi's own scheduler and no climate data."""

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import luigi
import pytest
import toy_tasks
from luigi.configuration import LuigiConfigParser, get_config
from throwaway_daemons import ended, eventually
from toy_tasks import run

from espo_luigi.commands import cli
from espo_luigi.driver import engines
from espo_luigi.driver.engines import close_engines, engine
from espo_luigi.driver.settings.espo import state_dir
from espo_luigi.driver.settings.sections import JOB_COMMAND
from espo_luigi.driver.worker import EspoWorker, ThreadTaskProcess
from espo_luigi.errors import JobError
from espo_luigi.files import read_object
from espo_luigi.jobs import retry
from espo_luigi.jobs.forkserver import Child
from espo_luigi.jobs.local import Forks, Launcher, LocalEngine, Room, Slots
from espo_luigi.jobs.lock import DriverLock, SecondDriverError
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.machine import machine_cpus

pytestmark = pytest.mark.usefixtures("one_fork_server")


def test_tasks_run_in_order_of_their_dependencies_and_dask_computes(tmp_path: Path) -> None:
    result = run(toy_tasks.Sum(n=100, folder=str(tmp_path)))
    assert result.status == luigi.LuigiStatusCode.SUCCESS
    assert (tmp_path / "sum-100.txt").read_text() == str(sum(range(100)) + sum(range(101)))


def test_the_garbage_collector_runs_in_a_job_once_dask_has_cut_an_array(tmp_path: Path) -> None:
    # Dask's `disable_gc` puts back the state in which it was imported: switched off, if jobs import with `gc.disable`.
    assert run(toy_tasks.Sliced(n=100, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS
    assert (tmp_path / "sliced-100.txt").read_text() == "True"


def test_a_run_with_nothing_to_do_says_so_and_where_the_results_are(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    one, two = (toy_tasks.Count(n=n, folder=str(tmp_path)) for n in (10, 11))
    run(one)
    assert "Nothing to do" not in log.text
    run(one, two)
    assert "Nothing to do" not in log.text
    run(one, two)
    paths = f"{tmp_path / 'count-10.txt'} {tmp_path / 'count-11.txt'}"
    assert f"Nothing to do: what was asked for is there already: {paths}" in log.text


def test_a_failure_names_the_task_the_exception_and_the_log_and_spares_the_others(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    result = run(toy_tasks.Fail(n=3, folder=str(tmp_path)), toy_tasks.Count(n=4, folder=str(tmp_path)))
    assert result.status == luigi.LuigiStatusCode.FAILED
    assert (tmp_path / "count-4.txt").exists()
    message = next(record.getMessage() for record in log.records if record.levelno == logging.ERROR)
    assert "Fail n=3" in message
    assert "ValueError: no such luck" in message
    assert "toy_tasks.py" in message
    path = Path(message.rsplit("log: ", 1)[1].splitlines()[0])
    assert "no such luck" in path.read_text()


def test_pools_of_processes_compute_and_end_beside_dask(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    assert run(toy_tasks.Pooled(n=100, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS, log.text
    assert (tmp_path / "pooled-100.txt").read_text() == str(20 * 100)


def test_a_run_whose_standard_streams_are_closed_and_know_no_accents_works(tmp_path: Path, own_workdir: Path) -> None:
    (tmp_path / "luigi.cfg").write_text(f"[espo]\nworkdir = {own_workdir}\n")
    said = "Québec → ✗"
    command = f"{JOB_COMMAND[0]} -m luigi --module toy_tasks Say --text '{said}' --folder {tmp_path} --local-scheduler"
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(["bash", "-c", f"{command} <&- >&- 2>&-"], cwd=tmp_path, env=environ, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "echo.txt").read_text() == ascii(said)
    assert next(own_workdir.glob("logs/Say/*.out")).read_text(encoding="utf-8").splitlines().count(said) == 2


def test_a_task_whose_input_went_while_it_worked_has_it_made_again_and_is_tried_again(
    tmp_path: Path, own_workdir: Path, log: pytest.LogCaptureFixture
) -> None:
    result = run(toy_tasks.Bereft(n=10, folder=str(tmp_path), times=2))
    assert result.status == luigi.LuigiStatusCode.SUCCESS, log.text
    assert (tmp_path / "bereft-10.txt").read_text() == "45"
    assert (tmp_path / "starts").read_text().split() == ["start"] * 3
    assert "InputChangedError: the input is gone" in log.text
    assert "[2/2] Bereft n=10" in log.text


def test_a_task_without_upstream_tasks_whose_raw_file_changed_is_tried_again(
    tmp_path: Path, own_workdir: Path, log: pytest.LogCaptureFixture
) -> None:
    result = run(toy_tasks.Rootless(n=13, folder=str(tmp_path), times=1))
    assert result.status == luigi.LuigiStatusCode.SUCCESS, log.text
    assert (tmp_path / "starts").read_text().split() == ["start"] * 2
    assert "InputChangedError: the raw file" in log.text


def test_an_input_that_changes_each_time_is_a_failure_in_the_end(
    tmp_path: Path, own_workdir: Path, log: pytest.LogCaptureFixture
) -> None:
    result = run(toy_tasks.Bereft(n=11, folder=str(tmp_path), times=99, removes=False))
    assert result.status == luigi.LuigiStatusCode.FAILED
    assert len((tmp_path / "starts").read_text().split()) == 4
    assert json.loads(next(own_workdir.glob("jobs/Bereft/*.result.json")).read_text())["outcome"] == "input"
    assert "1 of 2 tasks done, 1 failed" in log.text


def test_a_task_whose_input_is_gone_before_it_starts_has_it_made_again(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    result = run(toy_tasks.Robbed(n=12, folder=str(tmp_path), times=0))
    assert result.status == luigi.LuigiStatusCode.SUCCESS, log.text
    assert (tmp_path / "bereft-12.txt").read_text() == "66"
    assert "Unfulfilled dependency at run time" in log.text
    assert "Traceback" not in log.text


@pytest.fixture()
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Another driver, in the folder that `Count` must have for itself."""
    folder = tmp_path / "shared"
    monkeypatch.setattr(toy_tasks.Count, "exclusive_folders", classmethod(lambda cls: (folder,)))
    program = (
        f"import time; from pathlib import Path; from espo_luigi.driver.engines import hold_folders\n"
        f"hold_folders([Path({str(folder)!r})]); print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    yield other
    other.kill()
    other.wait()


def test_a_run_in_a_folder_where_another_driver_works_is_refused_before_it_writes_anything(
    taken: subprocess.Popen[str], tmp_path: Path, own_workdir: Path, log: pytest.LogCaptureFixture
) -> None:
    task = toy_tasks.Count(n=13, folder=str(tmp_path))
    assert run(task).status == luigi.LuigiStatusCode.SCHEDULING_FAILED
    assert f"a driver already works in {tmp_path / 'shared'}: process {taken.pid} on" in log.text
    assert not own_workdir.exists()
    taken.kill()
    taken.wait()
    assert run(task).status == luigi.LuigiStatusCode.SUCCESS
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_run_that_has_nothing_to_do_is_not_refused_and_deletes_nothing(
    taken: subprocess.Popen[str], tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_tasks.Sum, "covers_everything", True)
    monkeypatch.setattr(toy_tasks.Count, "delete_temporary", lambda self: pytest.fail("deleted beside another driver"))
    (tmp_path / "sum-1.txt").touch()
    assert run(toy_tasks.Sum(n=1, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS
    assert "not deleted now: a driver already works in" in log.text


def test_a_driver_whose_folder_another_took_starts_nothing_more() -> None:
    engine("local")
    engines._give_up(SecondDriverError("the lock is another driver's now"))
    with pytest.raises(SecondDriverError, match="another driver's now"):
        engine("local")
    close_engines()
    engine("local")
    close_engines()


def test_sizing_that_does_not_divide_stops_the_run_before_anything_starts(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    get_config().read_dict({"Count": {"n_workers": "3", "cpus_per_task": "10"}})
    assert run(toy_tasks.Sum(n=5, folder=str(tmp_path))).status != luigi.LuigiStatusCode.SUCCESS
    assert "cpus_per_task = 10" in log.text
    assert "9 or 12" in log.text
    assert not (tmp_path / "work").exists()


def test_each_job_writes_its_time_node_and_peak_memory(tmp_path: Path, own_workdir: Path) -> None:
    run(toy_tasks.Count(n=7, folder=str(tmp_path)))
    result = json.loads(next(own_workdir.glob("jobs/Count/*.result.json")).read_text())
    assert result["outcome"] == "success"
    assert result["ended"] >= result["started"]
    assert result["peak_memory_bytes"] > 20 * 2**20
    assert result["parameters"]["n"] == "7"


def test_resources_larger_than_the_machine_are_fitted_and_the_user_is_told_once_of_all_rules(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    large = {"n_workers": "3", "cpus_per_task": "12000", "memory": "9000TB"}
    get_config().read_dict({"Count": large, "Sum": large})
    assert run(toy_tasks.Sum(n=8, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS
    (told,) = [record.getMessage() for record in log.records if "more" in record.getMessage()]
    half, gib = max(1, machine_cpus() // 2), r"CPU\(s\) and [\d.]+ GiB"
    most = rf"at most {half} {gib} beside other jobs, and {machine_cpus()} {gib} alone"
    assert re.fullmatch(
        rf"A job on this machine gets {most}\. 2 rule\(s\) ask for more, and get at most that: Count, Sum", told
    )


def test_a_job_gets_half_of_the_machine_beside_others_and_all_of_it_if_no_other_is_ready(
    tmp_path: Path, own_workdir: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("espo_luigi.jobs.local._READY_TOGETHER_SECONDS", 3.0)
    large = {"n_workers": "1", "cpus_per_task": "12", "memory": "100GB"}
    get_config().read_dict({"espo": {"local_cpus": "4", "local_memory": "8GB"}, "Count": large, "Sum": large})
    assert run(toy_tasks.Sum(n=9, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS, log.text
    results = [json.loads(path.read_text()) for path in own_workdir.glob("jobs/*/*.result.json")]
    got = sorted((one["family"], *(one["parameters"][name] for name in large)) for one in results)
    assert got == [("Count", "1", "2", "4GB"), ("Count", "1", "2", "4GB"), ("Sum", "1", "4", "8GB")]
    rules = json.loads((own_workdir / "run.json").read_text())["rules"]
    assert rules["Sum"]["core_hours"] == pytest.approx(4 * rules["Sum"]["seconds"] / 3600)


@pytest.mark.parametrize(
    ("asked", "shared", "alone"),
    [
        (Resources(1, 20, "60GB"), Resources(1, 4, 2**33), Resources(1, 8, 2**34)),
        (Resources(5, 20, "12GB"), Resources(4, 4, 2**33), Resources(4, 8, "12GB")),
        (Resources(5, 5, "1GB"), Resources(4, 4, 2**30), Resources(4, 4, "1GB")),
        (Resources(2, 4, "1GB"), Resources(2, 4, "1GB"), Resources(2, 4, "1GB")),
    ],
)
def test_a_job_that_is_alone_gets_more_threads_and_memory_but_no_more_processes(
    tmp_path: Path, asked: Resources, shared: Resources, alone: Resources
) -> None:
    engine = LocalEngine(Forks(("false",), 8, 2**34))
    order = replace(toy_tasks.Count(n=1, folder=str(tmp_path)).order(), resources=asked)
    assert engine.fitted(order).resources == alone
    assert engine._shared(alone).completed() == shared.completed()


@pytest.mark.parametrize(
    ("name", "modules", "begun"), [("local", ("json",), 1), ("local", (), 0), ("slurm", ("json",), 0)]
)
def test_only_the_local_engine_imports_ahead_of_its_jobs(
    own_settings: LuigiConfigParser, name: str, modules: tuple[str, ...], begun: int
) -> None:
    own_settings.set("espo", "engine", name)
    try:
        engines.begin_local(modules)
        assert len(engines._begun) == begun
    finally:
        close_engines()
    assert not engines._begun


def test_slots_never_hand_out_more_than_there_is() -> None:
    slots = Slots({"": Room(3, 10 * 2**30)})
    cpus, most, lock, three = [0], [0], threading.Lock(), threading.Barrier(3, timeout=60)

    def take() -> None:
        with slots.taken(Resources(1, 1, "3GB"), Resources(1, 3, "9GB")) as (_, given):
            with lock:
                cpus[0] += given.cpus_per_task
                most[0] = max(most[0], cpus[0])
            three.wait()  # until three are busy
            with lock:
                cpus[0] -= given.cpus_per_task

    threads = [threading.Thread(target=take) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], cpus[0]) == (3, 0)


def test_a_job_that_comes_while_another_has_everything_waits_for_its_end() -> None:
    slots, shared, alone = Slots({"": Room(4, 10 * 2**30)}), Resources(1, 2, "3GB"), Resources(1, 4, "9GB")
    ends, events = threading.Event(), []

    def come() -> None:
        with slots.taken(shared, alone) as (_, given):
            events.append(("second", ends.is_set(), given.cpus_per_task))

    with ThreadPoolExecutor() as pool:
        with slots.taken(shared, alone) as (_, given):
            assert given.cpus_per_task == 4
            late = pool.submit(come)
            time.sleep(0.5)  # longer than a job waits for others
            assert events == []
            ends.set()
        late.result(60)
    assert [event[:2] for event in events] == [("second", True)]


def test_a_job_ends_soon_after_its_driver_is_killed(tmp_path: Path) -> None:
    program = (
        f"import toy_tasks, luigi; luigi.build([toy_tasks.Sleep(n=60, folder={str(tmp_path)!r})], local_scheduler=True)"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    eventually(lambda: pid_file.exists() and pid_file.read_text())
    job = int(pid_file.read_text())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    eventually(lambda: not _runs(job), 40)  # the job would sleep for 60 s


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_command_that_is_stopped_says_so_without_a_traceback(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    (tmp_path / "luigi.cfg").write_text("[core]\nlog_level = WARNING\n[espo]\nworkdir = work\n")
    luigi_command = Path(sys.executable).parent / "luigi"
    command = [luigi_command, "--module", "toy_tasks", "Sleep", "--n", "60", "--folder", ".", "--local-scheduler"]
    driver = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    eventually((tmp_path / "pid").exists)
    # A terminal sends Ctrl-C to all processes of the command.
    os.killpg(driver.pid, signum) if signum == signal.SIGINT else driver.send_signal(signum)
    errors = ended(driver, code)
    assert f"Stopped ({signum.name})" in errors
    assert "Traceback" not in errors
    assert "KeyboardInterrupt" not in errors
    assert not any(word in errors for word in ("out of memory", "ERROR", "FAILED"))


@pytest.mark.parametrize("how", ["cancel", "detach"])
def test_who_asks_a_local_driver_to_stop_is_told_at_once_how(
    tmp_path: Path, own_workdir: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    going = threading.Thread(target=run, args=[toy_tasks.Gated(n=1, folder=str(tmp_path), seconds=0.0)])
    going.start()
    try:
        eventually(lambda: DriverLock(state_dir()).holder() is not None)
        assert cli.main([how]) == 1
        assert f"with Ctrl-C in its terminal, or with `kill {os.getpid()}`" in capsys.readouterr().err
    finally:
        (tmp_path / "go").touch()
        going.join()
    assert list(state_dir().iterdir()) == []


@pytest.mark.parametrize("words", [["cancel"], ["detach"], ["submit", "luigi", "--module", "toy_tasks", "Count"]])
def test_the_driver_of_another_versions_folder_is_refused_before_it_is_touched(
    tmp_path: Path, own_workdir: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "submit":
        words = [*words, "--n", "1", "--folder", str(tmp_path)]
    state_dir().mkdir(parents=True)
    (state_dir() / "layout.json").write_text('{"layout": 1, "version": "0.1.0"}')
    note = state_dir() / "driver-job.json"
    note.write_text('{"token": "a", "job_id": "7", "alone": false, "command": [], "short": 0}')
    assert cli.main(words) == 1
    assert "the run with espo_luigi 0.1.0" in capsys.readouterr().err
    assert note.exists()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_an_interrupted_driver_terminates_its_jobs(tmp_path: Path) -> None:
    local = LocalEngine(Forks((*JOB_COMMAND, "--serve")))
    task = toy_tasks.Sleep(n=60, folder=str(tmp_path))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            local.run(task.order())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually((tmp_path / "pid").exists)
    local.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert "stopped with the run" in str(failures[0])


class Deaf(Launcher):
    """Starts jobs that do not answer to SIGTERM, and notes how many lived before each start."""

    place, parent = "this machine", "stdin"
    nodes = {"": Room(8, 2**40)}
    largest = nodes[""]

    def __init__(self) -> None:
        self.living: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, order: JobOrder, node: str) -> Child:
        self.living.append(sum(process.poll() is None for process in self._processes))
        child = Child()
        process = subprocess.Popen(["env", "--ignore-signal=TERM", "sleep", "20"], start_new_session=True)
        self._processes.append(process)
        child.pid = process.pid
        threading.Thread(target=lambda: (process.wait(), child.ended.set()), daemon=True).start()
        return child

    def close(self) -> None:
        """Leave nothing behind."""


def test_a_cancelled_job_that_does_not_end_is_killed_before_its_task_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espo_luigi.jobs.forkserver._LONGEST_STOP_SECONDS", 0.5)
    launcher = Deaf()
    local, order = LocalEngine(launcher), toy_tasks.Count(n=1, folder=str(tmp_path)).order()
    with ThreadPoolExecutor() as pool:
        tries = []
        for n in (1, 2):
            tries.append(pool.submit(local.run, order))
            eventually(lambda n=n: len(launcher.living) == n)
            time.sleep(0.1)  # the job's program, which does not answer, has begun
            local.cancel(order.id)
    assert launcher.living == [0, 0]
    assert all(isinstance(one.exception(), JobError) for one in tries)


def test_a_job_that_finds_the_configuration_edited_refuses_with_both(
    tmp_path: Path, own_workdir: Path, log: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "configuration").write_text("A")
    result = run(toy_tasks.AfterEdits(n=1, folder=str(tmp_path)))
    assert result.status == luigi.LuigiStatusCode.FAILED
    assert (tmp_path / "edited.txt").read_text() == "A"
    assert not (tmp_path / "count-1.txt").exists()
    assert "AfterEdits n=1" in log.text and "configuration A, and its job finds B" in log.text
    assert json.loads(next(own_workdir.glob("jobs/AfterEdits/*.result.json")).read_text())["outcome"] == "configuration"
    # The same command in a new process, which reads the files as they are now.
    toy_tasks._configuration.cache_clear()
    luigi.task_register.Register.clear_instance_cache()
    assert run(toy_tasks.AfterEdits(n=1, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS
    assert (tmp_path / "count-1.txt").read_text() == "B"


def test_outputs_that_cannot_be_looked_at_for_a_moment_fail_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    complete = toy_tasks.Count.complete
    failed: list[str] = []

    def failing(task: toy_tasks.Count) -> bool:
        me = f"{task.task_id} {threading.current_thread() is threading.main_thread()}"
        if failed.count(me) < 2:
            failed.append(me)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return bool(complete(task))

    monkeypatch.setattr(toy_tasks.Count, "complete", failing)
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.01)
    assert run(toy_tasks.Sum(n=5, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS, log.text
    assert len({me for me in failed if me.endswith("False")}) == 3, "each was asked in a task's thread, too"


def test_small_files_that_cannot_be_used_for_a_moment_fail_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    left = {"write": 2, "read": 2}

    def failing(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if left[name]:
                left[name] -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return method(*arguments, **keywords)

        return call

    monkeypatch.setattr(JobOrder, "write", failing("write", JobOrder.write))
    monkeypatch.setattr("espo_luigi.jobs.local.read_object", failing("read", read_object))
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.01)
    assert run(toy_tasks.Count(n=5, folder=str(tmp_path))).status == luigi.LuigiStatusCode.SUCCESS, log.text
    assert left == {"write": 0, "read": 0}


def test_a_thread_that_comes_late_starts_no_engine_once_the_run_has_ended(
    tmp_path: Path, own_workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, ended = threading.Event(), threading.Event()
    late = threading.Event()
    work = ThreadTaskProcess._work

    def slowly(process: ThreadTaskProcess) -> None:
        # As if the file system had hung while the thread looked at what its task needs.
        reached.set()
        ended.wait(30)
        work(process)
        late.set()

    def interrupted(worker: EspoWorker) -> None:
        if reached.wait(30):
            raise KeyboardInterrupt

    monkeypatch.setattr(ThreadTaskProcess, "_work", slowly)
    monkeypatch.setattr(EspoWorker, "_handle_next_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(toy_tasks.Count(n=5, folder=str(tmp_path)))
    ended.set()
    assert late.wait(30)
    assert engines._engines == {} and not (tmp_path / "count-5.txt").exists()


def test_a_folder_that_is_found_lost_while_the_engines_end_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ending:
        def close(self) -> None:
            # The watching thread looks at its locks once more, and is waited for.
            self.thread = threading.Thread(target=engines._give_up, args=(SecondDriverError("taken"),), daemon=True)
            self.thread.start()
            self.thread.join(5)
            self.waited = self.thread.is_alive()

    ending: Any = Ending()
    monkeypatch.setitem(engines._engines, "slurm", ending)
    close_engines()
    assert not ending.waited
    engine("local")


def test_the_local_engine_says_that_its_driver_lives(own_workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espo_luigi.jobs.lock.REFRESH_EVERY_SECONDS", 0.05)
    engine("local")
    lock = own_workdir / "scheduler" / "driver.lock"
    before = lock.stat().st_mtime_ns
    eventually(lambda: lock.stat().st_mtime_ns > before)
