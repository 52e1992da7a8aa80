/* What loop/optimizers.py does before and after an optimizer's step, its closure left to it. */

#include "hot.h"

typedef struct {
    PyObject_HEAD
    PyObject *recorder, *updates, *sums, *put_back, *seeded, *sample, *finish_sample, *before_step, *after_step;
    PyObject *trace_step, *leader, *before_update;
    int64_t sample_from_step, others, depth, stepping, micro_step, start_ns, nested_ns, closure_ns, finished;
    char made_any, scaled;
} Optimizers;

static PyTypeObject *optimizers_type;
static PyObject *name_plain_before, *name_plain_after, *name_with_closure, *name_step_begins, *name_step_ends;
static PyObject *name_leader, *name_parameter, *name_version, *name_torchs_version, *name_written, *name_leads;
static PyObject *name_param_groups, *name_lr, *name_rate, *boundary;

static void set(PyObject **field, PyObject *value) {
    PyObject *before = *field;
    Py_XINCREF(value);
    *field = value;
    Py_XDECREF(before);
}

static int64_t id_of(PyObject *object) { return (int64_t)(intptr_t)object; }

/* The parameter that `watch` looks at around the steps of this optimizer: 1 with a reference, 0 for none. */
static int watched(PyObject *watch, PyObject *optimizer, PyObject **parameter) {
    int64_t leader = integer_of(watch, name_leader);
    if (leader != id_of(optimizer)) return PyErr_Occurred() ? -1 : 0;
    *parameter = PyObject_CallMethodObjArgs(watch, name_parameter, NULL);
    if (*parameter == NULL) return -1;
    if (*parameter != Py_None) return 1;
    Py_DECREF(*parameter);
    return 0;
}

static int look_before(Optimizers *self, PyObject *optimizer) {
    PyObject *watch = self->put_back, *parameter;
    if (!given(watch)) return 0;
    Py_INCREF(watch);
    int result = watched(watch, optimizer, &parameter);
    if (result > 0) {
        int64_t written = integer_of(parameter, name_torchs_version), known = integer_of(watch, name_version);
        result = PyErr_Occurred() ? -1
            : written != known ? tell(watch, name_written, parameter, NULL, NULL) : 0;
        Py_DECREF(parameter);
    }
    Py_DECREF(watch);
    return result;
}

static int look_after(Optimizers *self, PyObject *optimizer) {
    PyObject *watch = self->put_back, *parameter;
    if (!given(watch)) return 0;
    Py_INCREF(watch);
    int result = watched(watch, optimizer, &parameter);
    if (result > 0) {
        PyObject *written = PyObject_GetAttr(parameter, name_torchs_version);
        result = written == NULL ? -1 : PyObject_SetAttr(watch, name_version, written);
        Py_XDECREF(written);
        Py_DECREF(parameter);
    }
    Py_DECREF(watch);
    return result;
}

/* Tell a part that has something to do in this step; `args` and `kwargs` may be NULL. */
static int tell_if_due(PyObject *part, int64_t step, PyObject *name, PyObject *optimizer, PyObject *args,
                       PyObject *kwargs) {
    if (!given(part)) return 0;
    int due = is_due(part, step);
    return due > 0 ? tell(part, name, optimizer, args, kwargs) : due;
}

static Recorder *recorder_of(Optimizers *self) {
    PyObject *recorder = self->recorder;
    return recorder != NULL && PyObject_TypeCheck(recorder, recorder_type) ? (Recorder *)recorder : NULL;
}

static PyObject *m_before(PyObject *object, PyObject *const *values, Py_ssize_t count) {
    Optimizers *self = (Optimizers *)object;
    Recorder *recorder = recorder_of(self);
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "_before takes an optimizer, its arguments and keywords");
        return NULL;
    }
    PyObject *optimizer = values[0], *args = values[1], *kwargs = values[2];
    if (recorder == NULL) return PyObject_CallMethodObjArgs(object, name_plain_before, optimizer, args, kwargs, NULL);
    int64_t now = now_ns();
    if (self->depth && self->stepping == id_of(optimizer) && self->micro_step == recorder->micro_step) {
        self->depth += 1;
        Py_RETURN_NONE;
    }
    self->depth = 1;
    self->stepping = id_of(optimizer);
    self->micro_step = recorder->micro_step;
    if (optimizer_begins(recorder, now) < 0) return NULL;
    self->nested_ns = known_ns(recorder);
    self->closure_ns = 0;
    set(&self->finish_sample, Py_None);
    if (given(self->before_update) && run(self->before_update, NULL, NULL, NULL) < 0) return NULL;
    recorder->cost_ns += now_ns() - now;
    int64_t step = recorder->step;
    if (look_before(self, optimizer) < 0) return NULL;
    if (given(self->seeded) && tell(self->seeded, name_step_begins, NULL, NULL, NULL) < 0) return NULL;
    if (tell_if_due(self->sums, step, name_step_begins, optimizer, NULL, NULL) < 0) return NULL;
    if (tell_if_due(self->updates, step, name_step_begins, optimizer, args, kwargs) < 0) return NULL;
    if (step >= self->sample_from_step && given(self->sample)
        && run(self->sample, optimizer, args, kwargs) < 0)
        return NULL;
    self->start_ns = now_ns();
    if (given(self->before_step) && run(self->before_step, optimizer, NULL, NULL) < 0) return NULL;
    Py_ssize_t arguments = PyObject_Size(args), keywords = PyObject_Size(kwargs);
    if (arguments < 0 || keywords < 0) return NULL;
    if (arguments > 1 || keywords)
        return PyObject_CallMethodObjArgs(object, name_with_closure, args, kwargs, NULL);
    Py_RETURN_NONE;
}

/* The time of the step that ended, without what it called. */
static int note_time(Optimizers *self, Recorder *recorder, PyObject *optimizer, int64_t now) {
    if (!self->start_ns) return 0;
    int64_t own = now - self->start_ns - self->closure_ns - (known_ns(recorder) - self->nested_ns);
    if (own < 0) own = 0;
    recorder->optimizer_ns += own;
    if (recorder->sampling && given(self->trace_step)) {
        PyObject *kind = PyObject_GetAttrString((PyObject *)Py_TYPE(optimizer), "__name__");
        PyObject *from = PyLong_FromLongLong(now - own), *to = PyLong_FromLongLong(now);
        int failed = kind == NULL || from == NULL || to == NULL || run(self->trace_step, kind, from, to) < 0;
        Py_XDECREF(kind);
        Py_XDECREF(from);
        Py_XDECREF(to);
        if (failed) return -1;
    }
    self->start_ns = 0;
    return 0;
}

/* The learning rate of the first group; what is no plain number is read in Python. */
static int rate_of(Optimizers *self, PyObject *optimizer, double *rate) {
    PyObject *groups = PyObject_GetAttr(optimizer, name_param_groups), *found = NULL;
    if (groups == NULL) return -1;
    if (PyList_CheckExact(groups) && PyList_Size(groups) > 0) {
        PyObject *group = PyList_GetItem(groups, 0);
        if (PyDict_CheckExact(group)) found = PyDict_GetItemWithError(group, name_lr);
    }
    int plain = found != NULL && PyFloat_CheckExact(found);
    if (plain) *rate = PyFloat_AsDouble(found);
    Py_DECREF(groups);
    if (plain) return 0;
    if (PyErr_Occurred()) return -1;
    found = PyObject_CallMethodObjArgs((PyObject *)self, name_rate, optimizer, NULL);
    if (found == NULL) return -1;
    *rate = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static int finish_sample(Optimizers *self, PyObject *optimizer) {
    PyObject *finish = self->finish_sample;
    double rate;
    if (!given(finish)) return 0;
    Py_INCREF(finish);
    set(&self->finish_sample, Py_None);
    PyObject *told = rate_of(self, optimizer, &rate) < 0 ? NULL : PyFloat_FromDouble(rate);
    int result = told == NULL ? -1 : run(finish, optimizer, told, NULL);
    Py_XDECREF(told);
    Py_DECREF(finish);
    return result;
}

/* Whether this optimizer counts the steps. */
static int leads(Optimizers *self, PyObject *optimizer) {
    PyObject *reference = self->leader;
    if (given(reference)) {
        Py_INCREF(reference);
        PyObject *leader = PyObject_CallNoArgs(reference);
        Py_DECREF(reference);
        if (leader == NULL) return -1;
        Py_DECREF(leader);
        if (leader == optimizer) return 1;
    }
    PyObject *answer = PyObject_CallMethodObjArgs((PyObject *)self, name_leads, optimizer, NULL);
    int result = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return result;
}

static int after_leader(Optimizers *self, Recorder *recorder, PyObject *optimizer, int64_t now) {
    double rate;
    self->others = 0;
    int unknown = self->scaled && PyObject_HasAttrString(optimizer, "_step_supports_amp_scaling");
    if (rate_of(self, optimizer, &rate) < 0) return -1;
    if (given(self->after_step) && run(self->after_step, optimizer, NULL, NULL) < 0) return -1;
    return end_step(recorder, now, boundary, rate, unknown ? NULL_BOOLEAN : 0);
}

static int after_other(Optimizers *self, Recorder *recorder, PyObject *optimizer, int64_t now) {
    if (optimizer_ends(recorder, now) < 0) return -1;
    recorder->cost_ns += now_ns() - now;
    return given(self->after_step) ? run(self->after_step, optimizer, NULL, NULL) : 0;
}

static PyObject *m_after(PyObject *object, PyObject *const *values, Py_ssize_t count) {
    Optimizers *self = (Optimizers *)object;
    Recorder *recorder = recorder_of(self);
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "_after takes an optimizer, its arguments and keywords");
        return NULL;
    }
    PyObject *optimizer = values[0];
    if (recorder == NULL)
        return PyObject_CallMethodObjArgs(object, name_plain_after, optimizer, values[1], values[2], NULL);
    int64_t now = now_ns(), step = recorder->step;
    if (self->depth > 1 && self->stepping == id_of(optimizer)) {
        self->depth -= 1;
        Py_RETURN_NONE;
    }
    self->depth = 0;
    self->finished += 1;
    if (tell_if_due(self->updates, step, name_step_ends, optimizer, NULL, NULL) < 0) return NULL;
    if (tell_if_due(self->sums, step, name_step_ends, optimizer, NULL, NULL) < 0) return NULL;
    if (look_after(self, optimizer) < 0) return NULL;
    self->made_any = 1;
    if (note_time(self, recorder, optimizer, now) < 0 || finish_sample(self, optimizer) < 0) return NULL;
    int first = recorder->explicit_ ? 0 : leads(self, optimizer);
    if (first < 0) return NULL;
    int failed = first ? after_leader(self, recorder, optimizer, now) : after_other(self, recorder, optimizer, now);
    if (failed < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_before", (PyCFunction)(void (*)(void))m_before, METH_FASTCALL, NULL},
    {"_after", (PyCFunction)(void (*)(void))m_after, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
#define FIELD(name, type) {#name, type, offsetof(Optimizers, name), 0, NULL}
#define HIDDEN(name, type) {"_" #name, type, offsetof(Optimizers, name), 0, NULL}
static PyMemberDef members[] = {
    FIELD(recorder, T_OBJECT), FIELD(updates, T_OBJECT), FIELD(sums, T_OBJECT), FIELD(put_back, T_OBJECT),
    FIELD(seeded, T_OBJECT), FIELD(sample, T_OBJECT), FIELD(finish_sample, T_OBJECT),
    FIELD(before_step, T_OBJECT), FIELD(after_step, T_OBJECT), FIELD(trace_step, T_OBJECT),
    HIDDEN(leader, T_OBJECT), FIELD(before_update, T_OBJECT), FIELD(sample_from_step, T_LONGLONG), HIDDEN(others, T_LONGLONG),
    HIDDEN(depth, T_LONGLONG), HIDDEN(stepping, T_LONGLONG), HIDDEN(micro_step, T_LONGLONG),
    HIDDEN(start_ns, T_LONGLONG), HIDDEN(nested_ns, T_LONGLONG), HIDDEN(closure_ns, T_LONGLONG),
    HIDDEN(finished, T_LONGLONG), FIELD(made_any, T_BOOL), HIDDEN(scaled, T_BOOL), {NULL, 0, 0, 0, NULL},
};
static const size_t objects[] = {
    offsetof(Optimizers, recorder), offsetof(Optimizers, updates), offsetof(Optimizers, sums),
    offsetof(Optimizers, put_back), offsetof(Optimizers, seeded), offsetof(Optimizers, sample),
    offsetof(Optimizers, finish_sample), offsetof(Optimizers, before_step), offsetof(Optimizers, after_step),
    offsetof(Optimizers, trace_step), offsetof(Optimizers, leader), offsetof(Optimizers, before_update), 0,
};
COLLECTED_MEMBERS
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc}, {0, NULL},
};
static PyType_Spec spec = {
    "probe.base.compiled._hot.Optimizers", sizeof(Optimizers), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots,
};

int add_optimizers(PyObject *module) {
    const struct { PyObject **name; const char *text; } names[] = {
        {&name_plain_before, "_plain__before"}, {&name_plain_after, "_plain__after"},
        {&name_with_closure, "_with_closure"}, {&name_step_begins, "step_begins"},
        {&name_step_ends, "step_ends"}, {&name_leader, "leader"}, {&name_parameter, "parameter"},
        {&name_version, "version"}, {&name_torchs_version, "_version"}, {&name_written, "written"},
        {&name_leads, "_leads"}, {&name_param_groups, "param_groups"}, {&name_lr, "lr"},
        {&name_rate, "_rate"}, {&boundary, "optimizer"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].name = interned(names[i].text)) == NULL) return -1;
    return add_type(module, &spec, &optimizers_type);
}
