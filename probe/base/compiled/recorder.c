/* The edges of core/recorder.py. What is uncommon is done by the Python functions, called `_plain_…` or by name. */

#include "hot.h"

PyTypeObject *recorder_type;
static PyObject *optimizer, *backward, *forward, *data, *other, *call;
static PyObject *name_trains, *name_train_here, *name_loss, *name_after_sample, *name_expect, *name_step_ended;
static PyObject *name_plain_end_step;

static inline void enter(Recorder *s, PyObject *phase) {
    PyObject *before = s->phase;
    Py_INCREF(phase);
    s->phase = phase;
    Py_XDECREF(before);
}

static int is_phase(PyObject *phase, PyObject *wanted) {
    return phase == wanted || (phase != NULL && PyUnicode_Check(phase) && PyUnicode_Compare(phase, wanted) == 0);
}

static int pulse(Recorder *s, int64_t now, int64_t phase) {
    Writer *writer = writer_of_append(s->append_pulse, PULSE_CODES);
    if (writer == NULL)
        return done(PyObject_CallFunction(s->append_pulse, "LLLL", (long long)s->step,
                                          (long long)s->micro_step, (long long)(now + anchor_ns),
                                          (long long)phase));
    Field row[4] = {{s->step}, {s->micro_step}, {now + anchor_ns}, {phase}};
    write_row(writer, row);
    return 0;
}

static int trains(Recorder *s, int64_t now) {
    if (!given(s->interval)) return 0;
    PyObject *told = PyLong_FromLongLong(now);
    if (told == NULL) return -1;
    int result = tell(s->intervals, name_trains, told, NULL, NULL);
    Py_DECREF(told);
    return result;
}

int trains_here(Recorder *s, int64_t now) {
    if (PyThread_get_thread_ident() != s->trainer
        && tell((PyObject *)s, name_train_here, NULL, NULL, NULL) < 0)
        return -1;
    return trains(s, now);
}

static void end_forward(Recorder *s, int64_t now) {
    if (s->forward_start_ns) {
        s->forward_ns += now - s->forward_start_ns;
        s->forward_start_ns = 0;
    } else if (!s->step_start_ns)
        s->step_start_ns = now;
}

static int note_loss(Recorder *s, int64_t now, double loss, double share) {
    s->loss_sum += loss;
    s->loss_count += 1;
    s->loss_share += share;
    int finite = loss - loss == 0.0;
    if (!finite) s->alert = 1;
    Writer *writer = writer_of_append(s->append_loss, LOSS_CODES);
    if (writer != NULL) {
        Field row[6] = {{s->step}, {s->micro_step}, {now + anchor_ns}, {.number = loss}, {finite},
                        {.number = share}};
        s->newest_loss = write_row(writer, row);
        return 0;
    }
    PyObject *number = PyObject_CallFunction(s->append_loss, "LLLdOd", (long long)s->step,
                                             (long long)s->micro_step, (long long)(now + anchor_ns), loss,
                                             finite ? Py_True : Py_False, share);
    if (number == NULL) return -1;
    s->newest_loss = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

int backward_begins(Recorder *s, int64_t now, const double *loss, double share) {
    if (trains_here(s, now) < 0) return -1;
    end_forward(s, now);
    if (loss != NULL && note_loss(s, now, *loss, share) < 0) return -1;
    enter(s, backward);
    return s->timing ? pulse(s, now, s->backward_id) : 0;
}

int backward_ends(Recorder *s, int64_t now, int64_t start) {
    s->backward_ns += now - start;
    s->micro_step += 1;
    enter(s, other);
    if (!s->timing) return 0;
    if (pulse(s, now, s->other_id) < 0) return -1;
    return !s->sampling && given(s->arm_forward) ? run(s->arm_forward, NULL, NULL, NULL) : 0;
}

int optimizer_begins(Recorder *s, int64_t now) {
    if (trains_here(s, now) < 0) return -1;
    end_forward(s, now);
    enter(s, optimizer);
    return s->timing ? pulse(s, now, s->optimizer_id) : 0;
}

int optimizer_ends(Recorder *s, int64_t now) {
    enter(s, other);
    return s->timing ? pulse(s, now, s->other_id) : 0;
}

static int expect_forward(Recorder *s) {
    if (!given(s->arm_forward)) return 0;
    if (given(s->interval)) return tell((PyObject *)s, name_expect, NULL, NULL, NULL);
    if ((s->timing || s->begin_awaited) && !s->sampling) return run(s->arm_forward, NULL, NULL, NULL);
    return s->forward_armed ? run(s->disarm_forward, NULL, NULL, NULL) : 0;
}

static void reset(Recorder *s, int64_t start) {
    s->step_start_ns = start;
    s->micro_step = 0;
    s->data_ns = s->forward_ns = s->backward_ns = s->optimizer_ns = s->comm_ns = 0;
    s->saw_data = s->saw_forward = s->saw_comm = 0;
    s->fed_by = s->loader;
    s->loader = NULL_STRING;
    s->held_ns = s->eval_ns = s->checkpoint_ns = 0;
    s->forward_start_ns = 0;
    s->loss_sum = s->loss_share = 0.0;
    s->loss_count = 0;
    s->grad_norm = s->clip_norm = NULL_DOUBLE;
    s->clip_scaled = s->training_mode = s->stale_gradients = NULL_BOOLEAN;
    s->samples = s->tokens = NULL_INTEGER;
    s->cost_ns = 0;
}

static int choose_next(Recorder *s, int shadow_allowed) {
    int64_t step = s->step, sample = s->next_sample;
    if (shadow_allowed) {
        int64_t every = s->timed_every > 0 ? s->timed_every : 1;
        int shadow = step >= SHADOW_FIRST && (step - SHADOW_FIRST) % SHADOW_EVERY < SHADOW_STEPS;
        s->timing = (step >= sample || step % every == 0 || step % ROUND == 0) && !shadow;
    }
    if (s->timing) {
        if (step >= sample && given(s->start_sampling)) {
            PyObject *start = s->start_sampling;
            Py_INCREF(start);
            PyObject *started = PyObject_CallNoArgs(start);
            Py_DECREF(start);
            int sampling = started == NULL ? -1 : PyObject_IsTrue(started);
            Py_XDECREF(started);
            if (sampling < 0) return -1;
            s->sampling = (char)sampling;
        }
        return expect_forward(s);
    }
    return s->forward_armed || s->begin_awaited || given(s->interval) ? expect_forward(s) : 0;
}

/* The step's loss, as `_loss` works it out. */
static int loss_of(Recorder *s, double *loss) {
    *loss = s->loss_count ? s->loss_sum : NULL_DOUBLE;
    if (!s->loss_count || (s->loss_count == 1 && s->loss_parts == 0.0)) return 0;
    PyObject *found = PyObject_CallMethodObjArgs((PyObject *)s, name_loss, NULL);
    if (found == NULL) return -1;
    *loss = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static int boundary_id(Recorder *s, PyObject *boundary, int64_t *id) {
    PyObject *found = given(s->boundary_ids) ? PyDict_GetItemWithError(s->boundary_ids, boundary) : NULL;
    if (found == NULL) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, boundary);
        return -1;
    }
    *id = PyLong_AsLongLong(found);
    return *id == -1 && PyErr_Occurred() ? -1 : 0;
}

static double seconds(int64_t ns) { return (double)ns / 1e9; }
static double seconds_if(int seen, int64_t ns) { return seen ? seconds(ns) : NULL_DOUBLE; }

static int tell_ended(Recorder *s, PyObject *boundary) {
    return s->end_awaited ? tell(s->listener, name_step_ended, boundary, NULL, NULL) : 0;
}

static int after_sample(Recorder *s, int64_t worked, int64_t spent) {
    PyObject *wall = PyLong_FromLongLong(worked), *cost = PyLong_FromLongLong(spent);
    int result = wall == NULL || cost == NULL
        ? -1 : tell((PyObject *)s, name_after_sample, wall, cost, NULL);
    Py_XDECREF(wall);
    Py_XDECREF(cost);
    return result;
}

/* Where the rows do not go into a ring of these columns: all of it in Python. */
static int plain_end_step(Recorder *s, int64_t now, PyObject *boundary, double lr, int64_t skipped) {
    PyObject *told = PyLong_FromLongLong(now), *rate = PyFloat_FromDouble(lr), *flag = PyLong_FromLongLong(skipped);
    int result = told == NULL || rate == NULL || flag == NULL
        ? -1 : done(PyObject_CallMethodObjArgs((PyObject *)s, name_plain_end_step, told, boundary, rate, flag, NULL));
    Py_XDECREF(told);
    Py_XDECREF(rate);
    Py_XDECREF(flag);
    return result;
}

int end_step(Recorder *s, int64_t now, PyObject *boundary, double lr, int64_t skipped) {
    Writer *writer = writer_of_append_row(s->append_step, STEP_CODES);
    if (writer == NULL) return plain_end_step(s, now, boundary, lr, skipped);
    if (trains(s, now) < 0) return -1;
    if (s->forward_start_ns) s->forward_ns += now - s->forward_start_ns;
    int64_t wall = now - (s->step_start_ns ? s->step_start_ns : now);
    int64_t worked = wall - s->held_ns - s->eval_ns - s->checkpoint_ns;
    int64_t known = s->data_ns + s->forward_ns + s->backward_ns + s->optimizer_ns + s->comm_ns;
    int64_t spent = s->cost_ns + (now_ns() - now), boundary_number;
    int shadow = !s->timing;
    double loss;
    if (boundary_id(s, boundary, &boundary_number) < 0 || loss_of(s, &loss) < 0) return -1;
    Field row[32] = {
        {s->step},
        {boundary_number},
        {s->micro_step},
        {now + anchor_ns},
        {.number = seconds(wall)},
        {.number = seconds_if(s->saw_data, s->data_ns)},
        {.number = seconds_if(s->saw_forward, s->forward_ns)},
        {.number = seconds_if(s->micro_step != 0, s->backward_ns)},
        {.number = seconds_if(s->optimizer_ns != 0, s->optimizer_ns)},
        {.number = seconds_if(s->saw_comm, s->comm_ns)},
        {.number = seconds_if(s->held_ns != 0, s->held_ns)},
        {.number = seconds_if(s->eval_ns != 0, s->eval_ns)},
        {.number = seconds_if(s->checkpoint_ns != 0, s->checkpoint_ns)},
        {.number = shadow ? NULL_DOUBLE : worked > known ? seconds(worked - known) : 0.0},
        {.number = loss},
        {.number = s->grad_norm},
        {.number = lr},
        {.number = s->clip_norm},
        {s->clip_scaled},
        {.number = s->loss_scale},
        {skipped},
        {s->training_mode},
        {s->stale_gradients},
        {s->samples},
        {s->tokens},
        {s->rss_bytes},
        {s->allocated_bytes},
        {s->reserved_bytes},
        {s->peak_allocated_bytes},
        {s->sampling},
        {shadow},
        {spent},
    };
    write_row(writer, row);
    if (s->sampling && after_sample(s, worked, spent) < 0) return -1;
    if (s->grad_norm - s->grad_norm != 0.0) s->alert = 1;
    s->step += 1;
    reset(s, now);
    enter(s, other);
    if (s->timing && pulse(s, now, s->other_id) < 0) return -1;
    if (choose_next(s, is_phase(boundary, optimizer) || is_phase(boundary, call)) < 0) return -1;
    s->cost_ns = now_ns() - now;
    return tell_ended(s, boundary);
}

/* As methods ------------------------------------------------------------- */

static int integers(PyObject *const *values, Py_ssize_t count, Py_ssize_t wanted, int64_t *into) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", wanted, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        into[i] = PyLong_AsLongLong(values[i]);
        if (into[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *none_unless(int failed) {
    if (failed < 0) return NULL;
    Py_RETURN_NONE;
}

#define EDGE(name, count) static PyObject *m_##name(PyObject *self, PyObject *const *values, Py_ssize_t given_count) { \
    Recorder *s = (Recorder *)self; int64_t v[count]; \
    if (integers(values, given_count, count, v) < 0) return NULL;

EDGE(data_begins, 1)
    enter(s, data);
    if (!s->step_start_ns) s->step_start_ns = v[0];
    Py_RETURN_NONE;
}

EDGE(data_ends, 2)
    s->data_ns += v[0] - v[1];
    s->saw_data = 1;
    enter(s, other);
    Py_RETURN_NONE;
}

EDGE(batch_arrived, 4)
    s->data_ns += v[0] - v[1];
    s->saw_data = 1;
    enter(s, other);
    if (v[2] != NULL_INTEGER) s->samples = s->samples == NULL_INTEGER ? v[2] : s->samples + v[2];
    if (v[3] != NULL_INTEGER) s->tokens = s->tokens == NULL_INTEGER ? v[3] : s->tokens + v[3];
    int waits = s->timing || s->forward_armed || s->begin_awaited || given(s->interval);
    return none_unless(waits ? expect_forward(s) : 0);
}

EDGE(forward_begins, 1)
    s->forward_start_ns = v[0];
    s->saw_forward = 1;
    enter(s, forward);
    if (!s->step_start_ns) s->step_start_ns = v[0];
    return none_unless(s->timing ? pulse(s, v[0], s->forward_id) : 0);
}

EDGE(backward_ends, 2)
    return none_unless(backward_ends(s, v[0], v[1]));
}

EDGE(optimizer_begins, 1)
    return optimizer_begins(s, v[0]) < 0 ? NULL : PyLong_FromLongLong(known_ns(s));
}

EDGE(optimizer_ends, 1)
    return none_unless(optimizer_ends(s, v[0]));
}

EDGE(communicated, 3)
    int64_t now = v[0], start = v[1], counted = v[2];
    if (!s->step_start_ns || start < s->step_start_ns) Py_RETURN_NONE;
    int64_t took = now - start - (s->comm_ns - counted);
    s->comm_ns += took;
    s->saw_comm = 1;
    if (is_phase(s->phase, backward)) s->backward_ns -= took;
    else if (is_phase(s->phase, data)) s->data_ns -= took;
    else if (s->forward_start_ns) s->forward_ns -= took;
    Py_RETURN_NONE;
}

static PyObject *m_backward_begins(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    if (count < 2 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "backward_begins takes a time, a loss and its share");
        return NULL;
    }
    int64_t now = PyLong_AsLongLong(values[0]);
    double loss = given(values[1]) ? PyFloat_AsDouble(values[1]) : 0.0;
    double share = count > 2 ? PyFloat_AsDouble(values[2]) : NULL_DOUBLE;
    if (PyErr_Occurred()) return NULL;
    return none_unless(backward_begins((Recorder *)self, now, given(values[1]) ? &loss : NULL, share));
}

static PyObject *m_end_step(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "end_step takes a time, a boundary, a rate and whether it was skipped");
        return NULL;
    }
    int64_t now = PyLong_AsLongLong(values[0]), skipped = PyLong_AsLongLong(values[3]);
    double lr = PyFloat_AsDouble(values[2]);
    if (PyErr_Occurred()) return NULL;
    return none_unless(end_step((Recorder *)self, now, values[1], lr, skipped));
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))m_##name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(data_begins), FAST(data_ends), FAST(batch_arrived), FAST(forward_begins), FAST(backward_begins),
    FAST(backward_ends), FAST(optimizer_begins), FAST(optimizer_ends), FAST(communicated), FAST(end_step),
    {NULL, NULL, 0, NULL},
};

#define FIELD(name, type) {#name, type, offsetof(Recorder, name), 0, NULL}
#define HIDDEN(name, type) {"_" #name, type, offsetof(Recorder, name), 0, NULL}
static PyMemberDef members[] = {
    FIELD(step, T_LONGLONG), FIELD(micro_step, T_LONGLONG), FIELD(step_start_ns, T_LONGLONG),
    FIELD(forward_start_ns, T_LONGLONG), FIELD(data_ns, T_LONGLONG), FIELD(forward_ns, T_LONGLONG),
    FIELD(backward_ns, T_LONGLONG), FIELD(optimizer_ns, T_LONGLONG), FIELD(comm_ns, T_LONGLONG),
    FIELD(cost_ns, T_LONGLONG), FIELD(held_ns, T_LONGLONG), FIELD(eval_ns, T_LONGLONG),
    FIELD(checkpoint_ns, T_LONGLONG), FIELD(thread, T_ULONG), HIDDEN(trainer, T_ULONG),
    FIELD(interval, T_OBJECT), FIELD(phase, T_OBJECT), HIDDEN(append_step, T_OBJECT),
    HIDDEN(append_loss, T_OBJECT), HIDDEN(append_pulse, T_OBJECT), FIELD(timing, T_BOOL),
    FIELD(sampling, T_BOOL), FIELD(alert, T_BOOL), {"explicit", T_BOOL, offsetof(Recorder, explicit_), 0, NULL},
    FIELD(forward_armed, T_BOOL), FIELD(begin_awaited, T_BOOL), FIELD(end_awaited, T_BOOL),
    FIELD(saw_data, T_BOOL), FIELD(saw_forward, T_BOOL), FIELD(saw_comm, T_BOOL), FIELD(loss_sum, T_DOUBLE),
    FIELD(loss_share, T_DOUBLE), FIELD(loss_parts, T_DOUBLE), FIELD(grad_norm, T_DOUBLE),
    FIELD(clip_norm, T_DOUBLE), FIELD(loss_scale, T_DOUBLE), FIELD(loss_count, T_LONGLONG),
    FIELD(newest_loss, T_LONGLONG), FIELD(next_sample, T_LONGLONG), FIELD(timed_every, T_LONGLONG),
    FIELD(clip_scaled, T_LONGLONG), FIELD(training_mode, T_LONGLONG), FIELD(stale_gradients, T_LONGLONG),
    FIELD(samples, T_LONGLONG), FIELD(tokens, T_LONGLONG), FIELD(loader, T_LONGLONG),
    FIELD(fed_by, T_LONGLONG), FIELD(rss_bytes, T_LONGLONG), FIELD(allocated_bytes, T_LONGLONG),
    FIELD(reserved_bytes, T_LONGLONG), FIELD(peak_allocated_bytes, T_LONGLONG), HIDDEN(forward_id, T_LONGLONG),
    HIDDEN(backward_id, T_LONGLONG), HIDDEN(optimizer_id, T_LONGLONG), HIDDEN(other_id, T_LONGLONG),
    HIDDEN(boundary_ids, T_OBJECT), FIELD(intervals, T_OBJECT), FIELD(listener, T_OBJECT),
    FIELD(arm_forward, T_OBJECT), FIELD(disarm_forward, T_OBJECT), FIELD(start_sampling, T_OBJECT),
    FIELD(stop_sampling, T_OBJECT), {NULL, 0, 0, 0, NULL},
};
static const size_t objects[] = {
    offsetof(Recorder, interval), offsetof(Recorder, phase), offsetof(Recorder, append_step),
    offsetof(Recorder, append_loss), offsetof(Recorder, append_pulse), offsetof(Recorder, boundary_ids),
    offsetof(Recorder, intervals), offsetof(Recorder, listener), offsetof(Recorder, arm_forward),
    offsetof(Recorder, disarm_forward), offsetof(Recorder, start_sampling),
    offsetof(Recorder, stop_sampling), 0,
};
COLLECTED_MEMBERS
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc}, {0, NULL},
};
static PyType_Spec spec = {
    "probe.base.compiled._hot.Recorder", sizeof(Recorder), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots,
};

int add_recorder(PyObject *module) {
    const struct { PyObject **name; const char *text; } names[] = {
        {&optimizer, "optimizer"}, {&backward, "backward"}, {&forward, "forward"}, {&data, "data"},
        {&other, "other"}, {&call, "call"}, {&name_trains, "trains"}, {&name_train_here, "_train_here"},
        {&name_loss, "_loss"}, {&name_after_sample, "_after_sample"}, {&name_expect, "expect_forward"},
        {&name_step_ended, "step_ended"}, {&name_plain_end_step, "_plain_end_step"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].name = interned(names[i].text)) == NULL) return -1;
    return add_type(module, &spec, &recorder_type);
}
