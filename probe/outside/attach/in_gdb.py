"""The part of an attach that runs in gdb's own Python. gdb runs this file (gdb.py); nothing imports it.

The environment variable ATTACH_PLAN holds the plan, with the address of every function that may be called, so
gdb reads no symbols while the job is stopped. Progress goes to stdout as lines of JSON that start with
`probe: `. It borrows a thread that is still parked where the plan says, or, with `breakpoints`, waits until
some thread enters an allocator or a function that Python calls between two bytecodes. On that thread it calls
`dlopen` and `probe_spawn` (or, without a library, `mmap` and `Py_AddPendingCall`), while all other threads
run (scheduler-locking is off by default), so that a thread that holds a needed lock can release it.

Standard library only, and nothing newer than Python 3.6: gdb may have an old one.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

gdb: Any = sys.modules["gdb"]  # provided by gdb; it cannot be imported elsewhere

MOST_STOPS = 40
INTERRUPT_S = 0.3
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22


class Refused(Exception):
    """Nothing was left in the job; the message says why."""


class Unloadable(Exception):
    """The job cannot load the library."""


def say(**what: Any) -> None:
    """Report to the command, if it is still there."""
    with contextlib.suppress(OSError):
        sys.stdout.write("probe: " + json.dumps(what) + "\n")
        sys.stdout.flush()


class Command:
    """The command at the other end of stdin: a byte, or the end of the stream, means that it has given up.

    While the job runs to a breakpoint the command interrupts it in time. If the command was killed, this
    thread does."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.given_up = threading.Event()
        self.waiting = threading.Event()
        self.stopped_it = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        left = os.read(0, 1)
        self.given_up.set()
        while not left:
            self.waiting.wait()
            self.stopped_it = True
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGSTOP)
            time.sleep(INTERRUPT_S)

    def continue_job(self) -> None:
        """Continue a job that is still stopped because of this."""
        if self.stopped_it:
            time.sleep(INTERRUPT_S)
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGCONT)


def main() -> None:
    """Attach, boot, detach; whatever happens, remove the breakpoints and detach."""
    plan = json.loads(os.environ["ATTACH_PLAN"])
    # If gdb ends with breakpoints in the job, the next one kills the job.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    pid = plan["pid"]
    for line in (
        "set confirm off", "set pagination off", "set height 0", "set unwindonsignal on",
        "set print thread-events off", "set breakpoint pending off",
        "set exec-file-mismatch off",
        # Signals that arrive now go to the job, except SIGSTOP, which interrupts gdb.
        "handle all nostop noprint pass", "handle SIGINT nostop noprint pass",
        "handle SIGSTOP stop print nopass",
    ):
        gdb.execute(line, to_string=True)
    with contextlib.suppress(gdb.error):  # else it is read after attaching, with the job stopped
        gdb.execute("file " + os.readlink(f"/proc/{pid}/exe"), to_string=True)
    command = Command(pid)
    say(phase="attaching")
    began = time.monotonic()
    called_s = 0.0
    try:
        gdb.execute(f"attach {pid}", to_string=True)
        called_s = find_thread_and_boot(plan, command)
    except (gdb.error, Refused, Unloadable) as error:
        say(failed=str(error), kind=type(error).__name__)
    finally:
        leave()
        command.continue_job()
        say(phase="detached", stopped_s=max(0.0, time.monotonic() - began - called_s))


def leave() -> None:
    """Remove the breakpoints and detach."""
    try:
        gdb.execute("delete", to_string=True)
        if gdb.selected_inferior().pid:
            gdb.execute("detach", to_string=True)
    except gdb.error as error:
        say(failed=f"detaching from the job: {error}")


def find_thread_and_boot(plan: Any, command: Command) -> float:
    """Find a thread and boot; returns the seconds that the job was running during a call or a wait."""
    for wanted in plan["parked"]:
        thread = thread_of(wanted[0])
        if thread is not None and where(plan["pid"], wanted[0]) == wanted:
            thread.switch()
            say(thread=wanted[0], how="a parked thread")
            return boot(plan)
    if not plan["breakpoints"]:
        raise Refused("the parked threads have resumed")
    waited_s = wait_for_boundary(plan, command)
    thread = gdb.selected_thread()
    say(thread=thread.ptid[1] or thread.ptid[0], how="a thread between two calls")
    return waited_s + boot(plan)


def thread_of(tid: int) -> Any:
    """gdb's thread with that native id."""
    for thread in gdb.selected_inferior().threads():
        if tid in (thread.ptid[1], thread.ptid[2]):
            return thread
    return None


def where(pid: int, tid: int) -> Any:
    """[tid, number, stack, code] of the system call of a stopped thread; None without one."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall") as file:
            words = file.read().split()
        return [tid, int(words[0]), int(words[-2], 16), int(words[-1], 16)]
    except (OSError, ValueError, IndexError):
        return None


def call(signature: str, address: int, *arguments: str) -> Any:
    """Call a C function on the selected thread."""
    return gdb.parse_and_eval(f"(({signature}){address})({', '.join(arguments)})")


def boot(plan: Any) -> float:
    """Inject the code; returns the seconds it took, during which all threads ran."""
    say(phase="calling")
    began = time.monotonic()
    if plan["library"]:
        load(plan["library"], plan["functions"])
    else:
        leave_a_call(plan["source"], plan["functions"])
    say(phase="called")
    return time.monotonic() - began


def load(library: str, functions: Any) -> None:
    """`dlopen` the boot library and start its thread."""
    handle = int(call("void *(*)(const char *, int)", functions["dlopen"], json.dumps(library), "2"))
    if not handle:
        words = call("char *(*)(void)", functions["dlerror"])
        reason = words.string() if int(words) else "no reason"
        raise Unloadable(f"the job cannot load the boot library ({reason})")
    signature = "void *(*)(void *, const char *)"
    start = int(call(signature, functions["dlsym"], f"(void *){handle}", '"probe_spawn"'))
    failed = int(call("int (*)(void)", start))
    if failed:
        raise Refused(f"the job cannot start a thread: {os.strerror(failed)}")


def leave_a_call(source: str, functions: Any) -> None:
    """Have the main thread run `source` when it next reaches bytecode: no lock and no library, but later."""
    text = source.encode() + b"\0"
    memory = int(call(
        "long (*)(long, long, int, int, int, long)", functions["mmap"], "0", str(len(text)), str(READ_WRITE),
        str(PRIVATE_ANONYMOUS), "-1", "0",
    ))
    if memory in (0, -1):
        raise Refused(f"the job has no memory for {len(text)} bytes")
    gdb.selected_inferior().write_memory(memory, text)
    run = functions["PyRun_SimpleString"]
    # PyRun_SimpleString fits a pending call: it takes a pointer and returns 0 on success.
    if int(call("int (*)(long, long)", functions["Py_AddPendingCall"], str(run), str(memory))):
        raise Refused("Python has too many pending calls already")


def wait_for_boundary(plan: Any, command: Command) -> float:
    """Let the job run until a thread holds no lock; returns the seconds it ran."""
    # Before any breakpoint is set: a call on a thread that just hit one crashed one job in twenty.
    functions = plan["functions"]
    call("int (*)(long, long)", functions["Py_AddPendingCall"], str(functions["PyCallable_Check"]), "0")
    ran_s = 0.0
    for address in plan["boundaries"]:  # a function's first instruction: the return address is on the stack
        gdb.Breakpoint(f"*{address}")
    stop_after_s = plan["boundary_s"]
    stood: Any = {}
    for _ in range(MOST_STOPS):
        say(phase="waiting", stop_after_s=stop_after_s)
        began = time.monotonic()
        command.waiting.set()
        gdb.execute("continue", to_string=True)
        command.waiting.clear()
        ran_s += time.monotonic() - began
        say(phase="stopped")
        if not gdb.selected_inferior().pid:
            raise Refused("the job has ended")
        if command.given_up.is_set():
            raise Refused("it was cancelled")
        stood = parked_since(plan, stood)
        if is_boundary(plan, stood):
            gdb.execute("delete", to_string=True)
            return ran_s
        stop_after_s = 0.05
    raise Refused("no thread reached a place where code can be injected safely")


def parked_since(plan: Any, stood: Any) -> Any:
    """Threads in a blocking call, and whether each was in the same call at the last stop (`stood`)."""
    found = {}
    for thread in gdb.selected_inferior().threads():
        here = where(plan["pid"], thread.ptid[1])
        if here and here[1] in plan["blocking"]:
            found[thread.ptid[1]] = (here, stood.get(thread.ptid[1], (None,))[0] == here)
    return found


def is_boundary(plan: Any, stood: Any) -> bool:
    """Whether a function may be called on the selected thread; may select another thread."""
    frame = gdb.newest_frame()
    if frame.pc() in plan["boundaries"]:
        # dlopen allocates while it holds the loader's lock, and would be re-entered.
        return not within(caller_of(frame), plan["loader"])
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        if stood.get(thread.ptid[1], (None, False))[1]:
            return True  # it has parked since
        # In the C library or an allocator a thread may hold a lock that dlopen needs.
        if not within(gdb.newest_frame().pc(), plan["closed"]):
            return True
    return False


def caller_of(frame: Any) -> int:
    """The return address of a function that was just entered."""
    if "aarch64" in frame.architecture().name():
        return int(gdb.parse_and_eval("(long)$x30"))
    return int(gdb.parse_and_eval("*(long *)$sp"))


def within(address: int, areas: Any) -> bool:
    """Whether an address is in one of these areas."""
    return any(low <= address < high for low, high in areas)


if __name__ == "__main__":
    main()
