/* What attaching brings into a job: a thread that fetches Python source and runs it.
 *
 * `probe_spawn` is called on a borrowed thread and does one thing: start a thread of its own. That one
 * says "L" (loaded), reads the whole source, and only then asks for the GIL, so that nothing is owed to
 * the command when the GIL comes late; with the GIL it says "R" (running) and runs the source, which
 * reports for itself. It speaks to the unix socket <pid>.sock beside this library, whose other end must
 * belong to the same user or to root.
 *
 * No Python.h, no library it needs by name, no symbol versions: one file serves every Python and every
 * libc of a machine. Never unmapped: the thread runs in it. Built with -nostdlib (see library.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define STACK_BYTES (1 << 20)  /* room for compiling a page of Python, and for libraries' thread-local data */
#define LONGEST_SOURCE (1 << 20)
#define HIGH 512
#define PATIENCE_S 10          /* a command that does not go on talking has gone */
#define PYTHON(result, name, ...) result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, #name)

/* Whether the number still means the socket to the command: the job may close it and open a file of its own
 * while this thread waits. fstat is no symbol of older C libraries. */
static int ours(int fd, const struct ucred *command) {
    struct ucred now;
    socklen_t size = sizeof now;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &now, &size) && now.pid == command->pid
        && now.uid == command->uid && now.gid == command->gid;
}

static void say(int fd, const struct ucred *command, const char *text) {
    if (ours(fd, command)) send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The command's socket, -1 when it has gone, and who it is. The folder is opened first: its path may be too
 * long for one. The number is a high one, out of the way of what the job opens. */
static int call_home(struct ucred *command) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    socklen_t size = sizeof *command;
    char folder[4096];
    Dl_info here;
    int fd = -1, high = -1, beside = -1, connected = 0;

    if (!dladdr((void *)call_home, &here) || strlen(here.dli_fname) >= sizeof folder) return -1;
    strcpy(folder, here.dli_fname);
    char *slash = strrchr(folder, '/');
    if (!slash) return -1;
    *slash = 0;
    if ((beside = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%d.sock", beside, (int)getpid());
    if ((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        do connected = !connect(fd, (struct sockaddr *)&address, sizeof address);
        while (!connected && errno == EINTR);
        connected = connected && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, command, &size)
            && (command->uid == getuid() || command->uid == 0);
    }
    close(beside);
    if (connected) {
        if ((high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH)) < 0) return fd;
        close(fd);
        return high;
    }
    if (fd >= 0) close(fd);
    return -1;
}

static int receive(int fd, const struct ucred *command, void *into, size_t wanted) {
    for (size_t got = 0; got < wanted;) {
        if (!ours(fd, command)) return 0;
        ssize_t part = recv(fd, (char *)into + got, wanted - got, 0);
        if (part < 0 && errno == EINTR) continue;  /* a debugger that lets go cuts waits with a time limit short */
        if (part <= 0) return 0;
        got += part;
    }
    return 1;
}

/* Length (4 bytes, this machine's order) and text; NULL when the command went away in the middle. */
static char *read_source(int fd, const struct ucred *command) {
    uint32_t length;
    if (!receive(fd, command, &length, sizeof length) || length > LONGEST_SOURCE) return NULL;
    char *source = malloc(length + 1);
    if (!source) return NULL;
    source[length] = 0;
    if (receive(fd, command, source, length)) return source;
    free(source);
    return NULL;
}

static void run(int fd, const struct ucred *command, const char *source, const char *name) {
    PYTHON(int, Py_IsInitialized, void);
    PYTHON(int, PyGILState_Ensure, void);
    PYTHON(void, PyGILState_Release, int);
    PYTHON(void *, PyDict_New, void);
    PYTHON(void *, PyLong_FromLong, long);
    PYTHON(int, PyDict_SetItemString, void *, const char *, void *);
    PYTHON(void *, PyRun_String, const char *, int, void *, void *);
    PYTHON(void, PyErr_Fetch, void **, void **, void **);
    PYTHON(void *, PyObject_Str, void *);
    PYTHON(const char *, PyUnicode_AsUTF8, void *);
    PYTHON(void, PyErr_Clear, void);
    PYTHON(void, Py_DecRef, void *);
    void *type = NULL, *value = NULL, *trace = NULL;

    if (!(Py_IsInitialized && PyGILState_Ensure && PyGILState_Release && PyDict_New && PyLong_FromLong
          && PyDict_SetItemString && PyRun_String && PyErr_Fetch && PyObject_Str && PyUnicode_AsUTF8
          && PyErr_Clear && Py_DecRef)) {
        say(fd, command, "Ethe process exports no Python functions\n");
        return;
    }
    if (!Py_IsInitialized()) {
        say(fd, command, "EPython has not started yet, or has ended\n");
        return;
    }
    int state = PyGILState_Ensure();
    if (!ours(fd, command)) {  /* nobody to report to, and a number that must not be handed on */
        PyGILState_Release(state);
        return;
    }
    say(fd, command, "R\n");
    prctl(PR_SET_NAME, name, 0, 0, 0);  /* threads that Python starts inherit it */
    void *globals = PyDict_New(), *number = PyLong_FromLong(fd), *result = NULL;
    if (globals && number && !PyDict_SetItemString(globals, "probe_fd", number))
        result = PyRun_String(source, 257 /* Py_file_input */, globals, globals);
    if (!result) {
        PyErr_Fetch(&type, &value, &trace);
        void *words = value ? PyObject_Str(value) : NULL;
        const char *text = words ? PyUnicode_AsUTF8(words) : NULL;
        say(fd, command, "E");
        say(fd, command, text ? text : "an error without words");
        say(fd, command, "\n");
        Py_DecRef(words);
        PyErr_Clear();
    }
    /* Py_DecRef takes NULL. */
    Py_DecRef(type), Py_DecRef(value), Py_DecRef(trace);
    Py_DecRef(result), Py_DecRef(number), Py_DecRef(globals);
    PyGILState_Release(state);
}

static void *boot(void *nothing) {
    char name[16] = "";
    prctl(PR_GET_NAME, name, 0, 0, 0);
    prctl(PR_SET_NAME, "probe-boot", 0, 0, 0);  /* the name of one that waits, which the command looks for */
    struct ucred command;
    int fd = call_home(&command);
    if (fd < 0) return nothing;
    say(fd, &command, "L\n");
    char *source = read_source(fd, &command);
    if (source) {
        run(fd, &command, source, name);
        free(source);
    }
    if (ours(fd, &command)) close(fd);
    return nothing;
}

/* Starts the thread; 0, or the error number of what failed. */
__attribute__((visibility("default"))) int probe_spawn(void) {
    sigset_t all, before;
    pthread_attr_t shape;
    pthread_t thread;
    int failed = pthread_attr_init(&shape);
    if (failed) return failed;
    pthread_attr_setstacksize(&shape, STACK_BYTES);
    pthread_attr_setdetachstate(&shape, PTHREAD_CREATE_DETACHED);
    /* The new thread inherits the mask: the job's signals go on to the job's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &shape, boot, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&shape);
    return failed;
}
