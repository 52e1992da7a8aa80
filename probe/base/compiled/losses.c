/* What loop/losses.py does around a backward; a root that a GradScaler or the job itself scaled, several roots,
   the first steps, and a loop that never made an optimizer are left to it. */

#include "hot.h"

typedef struct {
    PyObject_HEAD
    PyObject *recorder, *tensor, *on_backward_begin, *on_backward_end, *after_backward;
    PyObject *manual_updates, *roots, *updates, *sums, *unscaled;
    char values, follows, accumulates, scales;
    int64_t start_ns, depth;
} Losses;

static PyTypeObject *losses_type;
static PyObject *name_plain_begin, *name_plain_end, *name_share_of, *name_send, *name_numel, *name_is_cpu;
static PyObject *name_item, *name_backward_begins, *name_backward_ends, *name_pace, *name_sample;

/* The value of a scalar root on the host: 1 with `*loss`; 0 for others; -1 with an error. A copy is sent for
   where it is on a device. */
static int value_of(Losses *self, PyObject *root, int64_t now, double share, double *loss) {
    PyObject *count = PyObject_CallMethodObjArgs(root, name_numel, NULL);
    if (count == NULL) return -1;
    long long elements = PyLong_AsLongLong(count);
    Py_DECREF(count);
    if (elements != 1) return elements == -1 && PyErr_Occurred() ? -1 : 0;
    PyObject *on_host = PyObject_GetAttr(root, name_is_cpu);
    int is_cpu = on_host == NULL ? -1 : PyObject_IsTrue(on_host);
    Py_XDECREF(on_host);
    if (is_cpu < 0) return -1;
    if (!is_cpu) {
        PyObject *told = PyLong_FromLongLong(now), *part = PyFloat_FromDouble(share);
        int result = told == NULL || part == NULL ? -1 : tell((PyObject *)self, name_send, root, told, part);
        Py_XDECREF(told);
        Py_XDECREF(part);
        return result;
    }
    PyObject *found = PyObject_CallMethodObjArgs(root, name_item, NULL);
    if (found == NULL) return -1;
    *loss = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return *loss == -1.0 && PyErr_Occurred() ? -1 : 1;
}

static int share_of(Losses *self, PyObject *root, double *share) {
    PyObject *found = PyObject_CallMethodObjArgs((PyObject *)self, name_share_of, root, NULL);
    if (found == NULL) return -1;
    *share = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return *share == -1.0 && PyErr_Occurred() ? -1 : 0;
}

/* Whether a part of it has something to do in this step; -1 with an error. */
static int wants(PyObject *part, int64_t step) { return given(part) ? is_due(part, step) : 0; }

static int looks_at_root(Losses *self, Recorder *recorder, PyObject *root) {
    PyObject *roots = self->roots;
    if (!given(roots)) return 0;
    Py_INCREF(roots);
    PyObject *pace = PyObject_GetAttr(roots, name_pace);
    int due = pace == NULL ? -1 : is_due(pace, recorder->step);
    Py_XDECREF(pace);
    int result = due <= 0 ? due : tell(roots, name_sample, root, Py_False, NULL);
    Py_DECREF(roots);
    if (due > 0) self->start_ns = now_ns();
    return result;
}

static int begin_backward(Losses *self, Recorder *recorder, PyObject *root) {
    int64_t now = now_ns();
    double share = NULL_DOUBLE, loss = 0.0;
    int known = 0, due;
    if ((self->accumulates || recorder->micro_step)
        && share_of(self, root, &share) < 0)
        return -1;
    if (self->values && (known = value_of(self, root, now, share, &loss)) < 0) return -1;
    if (backward_begins(recorder, now, known ? &loss : NULL, share) < 0) return -1;
    if ((recorder->timing || recorder->alert) && given(self->on_backward_begin)) {
        self->follows = 1;
        PyObject *value = known ? PyFloat_FromDouble(loss) : Py_NewRef(Py_None);
        int failed = value == NULL || run(self->on_backward_begin, root, value, Py_False) < 0;
        Py_XDECREF(value);
        if (failed) return -1;
    }
    if ((due = wants(self->updates, recorder->step)) < 0
        || (due && tell(self->updates, name_backward_begins, root, NULL, NULL) < 0))
        return -1;
    self->start_ns = now_ns();
    recorder->cost_ns += self->start_ns - now;
    return looks_at_root(self, recorder, root);
}

static int end_backward(Losses *self, Recorder *recorder) {
    int64_t now = now_ns();
    int due;
    if (recorder->sampling && given(self->after_backward)) {
        PyObject *told = PyLong_FromLongLong(now);
        int failed = told == NULL || run(self->after_backward, told, NULL, NULL) < 0;
        Py_XDECREF(told);
        if (failed) return -1;
    }
    if (backward_ends(recorder, now, self->start_ns) < 0) return -1;
    if (self->follows) {
        self->follows = 0;
        if (given(self->on_backward_end) && run(self->on_backward_end, NULL, NULL, NULL) < 0) return -1;
    }
    if ((due = wants(self->updates, recorder->step)) < 0
        || (due && tell(self->updates, name_backward_ends, NULL, NULL, NULL) < 0))
        return -1;
    if ((due = wants(self->sums, recorder->step)) < 0
        || (due && tell(self->sums, name_backward_ends, NULL, NULL, NULL) < 0))
        return -1;
    recorder->cost_ns += now_ns() - now;
    return 0;
}

static Recorder *recorder_of(Losses *self) {
    PyObject *recorder = self->recorder;
    return recorder != NULL && PyObject_TypeCheck(recorder, recorder_type) ? (Recorder *)recorder : NULL;
}

static PyObject *m_begin(PyObject *object, PyObject *tensors) {
    Losses *self = (Losses *)object;
    Recorder *recorder = recorder_of(self);
    int common = recorder != NULL && !given(self->manual_updates) && !given(self->unscaled)
        && !self->scales && recorder->step >= FIRST_STEPS && given(self->tensor) && PyType_Check(self->tensor)
        && PyObject_TypeCheck(tensors, (PyTypeObject *)self->tensor);
    if (!common) return PyObject_CallMethodObjArgs(object, name_plain_begin, tensors, NULL);
    if (begin_backward(self, recorder, tensors) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *m_end(PyObject *object, PyObject *unused) {
    Losses *self = (Losses *)object;
    Recorder *recorder = recorder_of(self);
    (void)unused;
    if (recorder == NULL || given(self->manual_updates))
        return PyObject_CallMethodObjArgs(object, name_plain_end, NULL);
    if (end_backward(self, recorder) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_begin", m_begin, METH_O, NULL}, {"_end", m_end, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL},
};
#define FIELD(name, type) {#name, type, offsetof(Losses, name), 0, NULL}
#define HIDDEN(name, type) {"_" #name, type, offsetof(Losses, name), 0, NULL}
static PyMemberDef members[] = {
    FIELD(recorder, T_OBJECT), HIDDEN(tensor, T_OBJECT), FIELD(on_backward_begin, T_OBJECT),
    FIELD(on_backward_end, T_OBJECT), FIELD(after_backward, T_OBJECT), FIELD(manual_updates, T_OBJECT),
    FIELD(roots, T_OBJECT), FIELD(updates, T_OBJECT), FIELD(sums, T_OBJECT), HIDDEN(unscaled, T_OBJECT),
    FIELD(values, T_BOOL), FIELD(follows, T_BOOL), HIDDEN(accumulates, T_BOOL), HIDDEN(scales, T_BOOL),
    HIDDEN(start_ns, T_LONGLONG), HIDDEN(depth, T_LONGLONG), {NULL, 0, 0, 0, NULL},
};
static const size_t objects[] = {
    offsetof(Losses, recorder), offsetof(Losses, tensor), offsetof(Losses, on_backward_begin),
    offsetof(Losses, on_backward_end), offsetof(Losses, after_backward), offsetof(Losses, manual_updates),
    offsetof(Losses, roots), offsetof(Losses, updates), offsetof(Losses, sums), offsetof(Losses, unscaled), 0,
};
COLLECTED_MEMBERS
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc}, {0, NULL},
};
static PyType_Spec spec = {
    "probe.base.compiled._hot.Losses", sizeof(Losses), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots,
};

int add_losses(PyObject *module) {
    const struct { PyObject **name; const char *text; } names[] = {
        {&name_plain_begin, "_plain__begin"}, {&name_plain_end, "_plain__end"}, {&name_share_of, "_share_of"},
        {&name_send, "_send"}, {&name_numel, "numel"}, {&name_is_cpu, "is_cpu"}, {&name_item, "item"},
        {&name_backward_begins, "backward_begins"}, {&name_backward_ends, "backward_ends"},
        {&name_pace, "pace"}, {&name_sample, "sample"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].name = interned(names[i].text)) == NULL) return -1;
    return add_type(module, &spec, &losses_type);
}
