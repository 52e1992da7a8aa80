/* The module probe.base.compiled._hot: its clock, what its types share, and what the sources must agree on. */

#include "hot.h"

int64_t anchor_ns;
static PyObject *test_clock; /* called instead of the clock, in tests */

int64_t now_ns(void) {
    if (test_clock != NULL) {
        PyObject *told = PyObject_CallNoArgs(test_clock);
        int64_t now = told == NULL ? 0 : PyLong_AsLongLong(told);
        Py_XDECREF(told);
        return now;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t integer_of(PyObject *owner, PyObject *name) {
    PyObject *found = PyObject_GetAttr(owner, name);
    if (found == NULL) return 0;
    int64_t value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? 0 : value;
}

int is_due(PyObject *owner, int64_t step) {
    static PyObject *name;
    if (name == NULL && (name = interned("due")) == NULL) return -1;
    int64_t due = integer_of(owner, name);
    return due == 0 && PyErr_Occurred() ? -1 : step >= due;
}

PyObject *interned(const char *text) { return PyUnicode_InternFromString(text); }

int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

#define MEMBER(self, offset) (*(PyObject **)((char *)(self) + (offset)))

int visit_members(PyObject *self, const size_t *objects, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (; *objects; objects++) Py_VISIT(MEMBER(self, *objects));
    return 0;
}

int clear_members(PyObject *self, const size_t *objects) {
    for (; *objects; objects++) Py_CLEAR(MEMBER(self, *objects));
    return 0;
}

void free_members(PyObject *self, const size_t *objects) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_members(self, objects);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *begin(PyObject *module, PyObject *anchor) {
    (void)module;
    int64_t value = PyLong_AsLongLong(anchor);
    if (value == -1 && PyErr_Occurred()) return NULL;
    anchor_ns = value;
    Py_RETURN_NONE;
}

static PyObject *set_clock(PyObject *module, PyObject *clock) {
    (void)module;
    Py_CLEAR(test_clock);
    if (clock != Py_None) {
        Py_INCREF(clock);
        test_clock = clock;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"begin", begin, METH_O, "Take base/clock.py's ANCHOR_NS."},
    {"set_clock", set_clock, METH_O, "In tests: what is called for the time in ns; None: the clock."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_hot", "The compiled hot path; see probe/base/compiled/__init__.py.", -1, functions,
    NULL, NULL, NULL, NULL,
};

/* What is written twice, here and in Python; a test compares them. */
static int add_constants(PyObject *module) {
    PyObject *lowest = PyFloat_FromDouble(NULL_DOUBLE), *integer = PyLong_FromLongLong(NULL_INTEGER);
    return PyModule_AddObject(module, "NULL_DOUBLE", lowest) < 0
        || PyModule_AddObject(module, "NULL_INTEGER", integer) < 0
        || PyModule_AddIntMacro(module, NULL_BOOLEAN) < 0 || PyModule_AddIntMacro(module, NULL_STRING) < 0
        || PyModule_AddIntMacro(module, SHADOW_FIRST) < 0 || PyModule_AddIntMacro(module, SHADOW_EVERY) < 0
        || PyModule_AddIntMacro(module, SHADOW_STEPS) < 0 || PyModule_AddIntMacro(module, ROUND) < 0 || PyModule_AddIntMacro(module, FIRST_STEPS) < 0
        || PyModule_AddStringConstant(module, "STEP_CODES", STEP_CODES) < 0
        || PyModule_AddStringConstant(module, "LOSS_CODES", LOSS_CODES) < 0
        || PyModule_AddStringConstant(module, "PULSE_CODES", PULSE_CODES) < 0
        || PyModule_AddStringConstant(module, "SOURCES", PROBE_SOURCES) < 0 ? -1 : 0;
}

PyMODINIT_FUNC PyInit__hot(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (add_constants(module) < 0 || add_ring(module) < 0 || add_guard(module) < 0 || add_recorder(module) < 0
        || add_losses(module) < 0 || add_optimizers(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
