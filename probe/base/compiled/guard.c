/* guard(hook, arguments, tracing, failed): what Isolation.guard returns, without a frame of its own.

   `tracing` is the list of Isolation.tracing. `failed(error)` says whether the error is raised, and gives
   None or what is called instead of the hook from now on. */

#include "hot.h"

typedef struct {
    PyObject_HEAD
    PyObject *hook, *tracing, *failed;
    long arguments; /* that the hook takes; -1: any number */
} Guard;

static PyTypeObject *guard_type;

static PyObject *call_hook(PyObject *hook, long takes, PyObject *const *values, Py_ssize_t count) {
    PyObject *one = count > 0 ? values[0] : Py_None, *two = count > 1 ? values[1] : Py_None;
    PyObject *three = count > 2 ? values[2] : Py_None;
    switch (takes) {
    case 0: return PyObject_CallNoArgs(hook);
    case 1: return PyObject_CallFunctionObjArgs(hook, one, NULL);
    case 2: return PyObject_CallFunctionObjArgs(hook, one, two, NULL);
    case 3: return PyObject_CallFunctionObjArgs(hook, one, two, three, NULL);
    }
    PyObject *packed = PyTuple_New(count);
    if (packed == NULL) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(values[i]);
        PyTuple_SetItem(packed, i, values[i]);
    }
    PyObject *result = PyObject_Call(hook, packed, NULL);
    Py_DECREF(packed);
    return result;
}

/* The hook raised an Exception: None, unless that is to be raised. */
static PyObject *give_up(Guard *guard) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace != NULL) PyException_SetTraceback(error, trace);
    PyObject *verdict = PyObject_CallFunctionObjArgs(guard->failed, error, NULL);
    if (verdict == NULL || verdict == Py_True) {
        Py_XDECREF(verdict);
        PyErr_Clear();
        PyErr_Restore(kind, error, trace);
        return NULL;
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    if (PyCallable_Check(verdict)) {
        PyObject *before = guard->hook;
        guard->hook = verdict;
        Py_DECREF(before);
    } else
        Py_DECREF(verdict);
    Py_RETURN_NONE;
}

static PyObject *guarded(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    Guard *guard = (Guard *)self;
    if (guard->hook == NULL || guard->tracing == NULL) Py_RETURN_NONE; /* being freed */
    PyObject *asks = PyList_GetItem(guard->tracing, 0);
    if (asks == NULL) return NULL;
    if (asks != Py_None) {
        Py_INCREF(asks);
        PyObject *answer = PyObject_CallNoArgs(asks);
        Py_DECREF(asks);
        int is_traced = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_traced < 0) return NULL;
        if (is_traced) Py_RETURN_NONE;
    }
    PyObject *hook = guard->hook;
    Py_INCREF(hook); /* another call may replace it */
    PyObject *result = call_hook(hook, guard->arguments, values, count);
    Py_DECREF(hook);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_Exception)) return give_up(guard);
    return result;
}

static PyMethodDef guarded_definition = {
    "guarded", (PyCFunction)(void (*)(void))guarded, METH_FASTCALL, "A hook that never raises an Exception.",
};

static PyObject *make_guard(PyObject *module, PyObject *arguments) {
    PyObject *hook, *tracing, *failed;
    long takes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OlO!O", &hook, &takes, &PyList_Type, &tracing, &failed)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(guard_type, Py_tp_alloc);
    Guard *guard = (Guard *)allocate(guard_type, 0);
    if (guard == NULL) return NULL;
    Py_INCREF(hook);
    Py_INCREF(tracing);
    Py_INCREF(failed);
    guard->hook = hook;
    guard->tracing = tracing;
    guard->failed = failed;
    guard->arguments = takes > 3 ? -1 : takes;
    PyObject *found = PyCFunction_NewEx(&guarded_definition, (PyObject *)guard, NULL);
    Py_DECREF(guard);
    return found;
}

static const size_t objects[] = {
    offsetof(Guard, hook), offsetof(Guard, tracing), offsetof(Guard, failed), 0,
};
COLLECTED_MEMBERS

static PyType_Slot slots[] = {
    {Py_tp_traverse, traverse}, {Py_tp_clear, clear}, {Py_tp_dealloc, dealloc}, {0, NULL},
};
static PyType_Spec spec = {
    "probe.base.compiled._hot.Guard", sizeof(Guard), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
static PyMethodDef functions[] = {
    {"guard", make_guard, METH_VARARGS, "A hook that never raises an Exception."}, {NULL, NULL, 0, NULL},
};

int add_guard(PyObject *module) {
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    return add_type(module, &spec, &guard_type);
}
