"""The part of an attach that runs in gdb's own Python. gdb runs this file (gdb.py); nothing imports it.

The environment variable ATTACH_PLAN holds the plan, with the address of every function that may be called, so
gdb reads no symbols while the job is stopped. Progress goes to stdout as lines of JSON that start with
`probe: `. It borrows a thread that is still parked where the plan says, or, with `breakpoints`, waits until
some thread enters an allocator or a function that Python calls between two bytecodes. On that thread it calls
`dlopen` and `probe_spawn` (or, without a library, `mmap` and `Py_AddPendingCall`), while all other threads
run (scheduler-locking is off by default), so that a thread that holds a needed lock can release it.

gdb 13 cannot write the vector registers of a processor with AMX: its buffer is smaller than what the
kernel requires. A call of gdb's own then never restores them, and the job dies. There the call is made by
hand (`HandMadeCall`).

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
PLAN: Any = {}

MOST_STOPS = 40
INTERRUPT_S = 0.3
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22


class Refused(Exception):
    """Nothing was left in the job; the message says why."""


class Unloadable(Exception):
    """The job cannot load the library."""


class Unsaved(Exception):
    """The registers of the thread could not be saved, so nothing was called."""


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
    PLAN.update(plan)
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
    except (gdb.error, Refused, Unloadable, Unsaved) as error:
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


def call(returns: str, address: int, *arguments: Any) -> int:
    """Call a C function, which returns `int` or `long`, on the selected thread; arguments are integers and
    strings."""
    if PLAN["by_hand"]:
        with HandMadeCall() as made:
            result = made.result(address, arguments)
        return result if returns == "long" else (result + 2**31) % 2**32 - 2**31
    kinds = ", ".join("const char *" if isinstance(one, str) else "long" for one in arguments)
    words = ", ".join(json.dumps(one) if isinstance(one, str) else str(one) for one in arguments)
    return int(gdb.parse_and_eval(f"(({returns} (*)({kinds or 'void'})){address})({words})"))


# Calls by hand ----------------------------------------------------------------------


GENERAL = (
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip", "orig_rax",
)
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
GETREGSET, SETREGSET, NT_X86_XSTATE = 0x4204, 0x4205, 0x202
MOST_XSTATE = 1 << 16
RED_ZONE, SCRATCH = 128, 8192


def regset(request: int, tid: int, content: bytes, size: int) -> bytes:
    """ptrace's GETREGSET or SETREGSET of the vector state. gdb traces with this thread, so we may."""
    try:
        import ctypes
    except ImportError as error:
        raise Unsaved(f"gdb's Python has no ctypes: {error}") from error
    buffer = ctypes.create_string_buffer(content, size)

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    vector = Vector(ctypes.addressof(buffer), size)
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.restype = ctypes.c_long
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(request, tid, NT_X86_XSTATE, ctypes.addressof(vector)):
        raise Unsaved(f"ptrace: {os.strerror(ctypes.get_errno())}")
    return buffer.raw[: vector.length]


def vector_state(tid: int) -> bytes:
    """The whole vector state of a stopped thread, as large as this kernel has it."""
    return regset(GETREGSET, tid, b"", MOST_XSTATE)


class HandMadeCall:
    """A call on the selected thread that saves and restores its registers itself. It returns to the program's
    entry point, which nothing runs any more.

    General registers are written one at a time, which gdb does without touching the vector state; that goes
    through ptrace at its full size. All threads run during the call, as in gdb's own."""

    def __init__(self) -> None:
        gdb.newest_frame().select()
        self.tid = gdb.selected_thread().ptid[1]
        self.vector = vector_state(self.tid)
        regset(SETREGSET, self.tid, self.vector, len(self.vector))  # fails here or never
        self.general = {name: int(gdb.parse_and_eval(f"(long)${name}")) for name in GENERAL}
        self.general["eflags"] = int(gdb.parse_and_eval("$eflags"))
        self.entry = PLAN["entry"]

    def __enter__(self) -> "HandMadeCall":
        self.breakpoint = gdb.Breakpoint(f"*{self.entry}", internal=True)
        return self

    def result(self, address: int, arguments: Any) -> int:
        """Run the function; its result."""
        memory = gdb.selected_inferior()
        scratch = (self.general["rsp"] - RED_ZONE - SCRATCH) & ~15
        free = scratch
        values = []
        for one in arguments:
            if isinstance(one, str):
                text = one.encode() + b"\0"
                memory.write_memory(free, text)
                values.append(free)
                free += len(text)
            else:
                values.append(one)
        memory.write_memory(scratch - 8, self.entry.to_bytes(8, "little"))
        registers = {ARGUMENTS[number]: value for number, value in enumerate(values)}
        # No system call is to be restarted while the function runs.
        registers.update(rax=0, rsp=scratch - 8, orig_rax=-1, rip=address)
        self.write(registers)
        for _ in range(MOST_STOPS):
            gdb.execute("continue", to_string=True)
            if not gdb.selected_inferior().pid:
                raise Refused("the job has ended")
            thread = gdb.selected_thread()
            if thread.ptid[1] == self.tid and gdb.newest_frame().pc() == self.entry:
                return int(gdb.parse_and_eval("(long)$rax"))
        raise Refused("the call did not return")

    def write(self, registers: Any) -> None:
        """Write general registers of the thread."""
        for name, value in registers.items():
            gdb.execute(f"set ${name} = {value}", to_string=True)

    def __exit__(self, *_: object) -> None:
        self.breakpoint.delete()
        if gdb.selected_inferior().pid:
            thread = thread_of(self.tid)
            if thread is not None:
                thread.switch()
                gdb.newest_frame().select()
                self.write(self.general)
                regset(SETREGSET, self.tid, self.vector, len(self.vector))


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
    handle = call("long", functions["dlopen"], library, 2)
    if not handle:
        words = call("long", functions["dlerror"])
        reason = gdb.parse_and_eval(f"(char *){words}").string() if words else "no reason"
        raise Unloadable(f"the job cannot load the boot library ({reason})")
    start = call("long", functions["dlsym"], handle, "probe_spawn")
    failed = call("int", start)
    if failed:
        raise Refused(f"the job cannot start a thread: {os.strerror(failed)}")


def leave_a_call(source: str, functions: Any) -> None:
    """Have the main thread run `source` when it next reaches bytecode: no lock and no library, but later."""
    text = source.encode() + b"\0"
    memory = call("long", functions["mmap"], 0, len(text), READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    if memory in (0, -1):
        raise Refused(f"the job has no memory for {len(text)} bytes")
    gdb.selected_inferior().write_memory(memory, text)
    run = functions["PyRun_SimpleString"]
    # PyRun_SimpleString fits a pending call: it takes a pointer and returns 0 on success.
    if call("int", functions["Py_AddPendingCall"], run, memory):
        raise Refused("Python has too many pending calls already")


def wait_for_boundary(plan: Any, command: Command) -> float:
    """Let the job run until a thread holds no lock; returns the seconds it ran."""
    # Before any breakpoint is set: a call on a thread that just hit one crashed one job in twenty.
    functions = plan["functions"]
    call("int", functions["Py_AddPendingCall"], functions["PyCallable_Check"], 0)
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
