/* What the compiled hot path shares: the types, the clock, and what every function may and may not do.

   Each function here does what the Python function of the same name does (see form() in __init__.py), which stays the
   reference: what is uncommon is left to it. The GIL is held throughout, no lock is taken, nothing is
   allocated but what a call returns or passes on. Stable ABI of Python 3.10: one library for all versions. */

#ifndef PROBE_HOT_H
#define PROBE_HOT_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are little-endian, as recording/layout.py describes them"
#endif
#ifdef Py_GIL_DISABLED
#error "without the GIL the plain source runs"
#endif

/* The headers of 3.12 and later do not count this reference, since None is immortal there. Before 3.12 it is not,
   and a job would end when None has lost its last one. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#define NULL_INTEGER INT64_MIN
#define NULL_DOUBLE (-DBL_MAX)
#define NULL_BOOLEAN (-1)
#define NULL_STRING 0
#define ROUND 50
#define SHADOW_FIRST 200
#define SHADOW_EVERY 1000
#define SHADOW_STEPS 8
#define FIRST_STEPS 2

#define MOST_FIELDS 96
#define MOST_ROW_BYTES 1024
#define STEP_CODES "qIqqddddddddddddddbdbbbqqqqqqbbq"
#define LOSS_CODES "qqqdbd"
#define PULSE_CODES "qqqI"

typedef union {
    int64_t integer;
    double number;
} Field;

/* A ring's rows, for writing (recording/ring.py). */
typedef struct {
    PyObject_HEAD
    PyObject *view;       /* keeps the file mapped; NULL once closed */
    unsigned char *place; /* of the first row; NULL once closed */
    int64_t rows, row_bytes, newest;
    int fields;
    char codes[MOST_FIELDS + 1];
} Writer;

/* The fields of core/recorder.py that change in every step. */
typedef struct {
    PyObject_HEAD
    int64_t step, micro_step, step_start_ns, forward_start_ns;
    int64_t data_ns, forward_ns, backward_ns, optimizer_ns, comm_ns, cost_ns;
    int64_t held_ns, eval_ns, checkpoint_ns;
    unsigned long thread, trainer;
    PyObject *interval, *phase, *append_step, *append_loss, *append_pulse;
    char timing, sampling, alert, explicit_, forward_armed, begin_awaited, end_awaited;
    char saw_data, saw_forward, saw_comm;
    double loss_sum, loss_share, loss_parts, grad_norm, clip_norm, loss_scale;
    int64_t loss_count, newest_loss, next_sample, timed_every;
    int64_t clip_scaled, training_mode, stale_gradients, samples, tokens, loader, fed_by;
    int64_t rss_bytes, allocated_bytes, reserved_bytes, peak_allocated_bytes;
    int64_t forward_id, backward_id, optimizer_id, other_id;
    PyObject *boundary_ids, *intervals, *listener;
    PyObject *arm_forward, *disarm_forward, *start_sampling, *stop_sampling;
} Recorder;

extern PyTypeObject *writer_type, *recorder_type;
extern int64_t anchor_ns;

/* module.c */
int64_t now_ns(void);

static inline int given(PyObject *object) { return object != NULL && object != Py_None; }

/* Drops a result; -1 where there is none, since an error is set. */
static inline int done(PyObject *result) {
    if (result == NULL) return -1;
    Py_DECREF(result);
    return 0;
}

/* Call what a field holds, with up to three arguments, the others NULL: it may be replaced meanwhile. */
static inline int run(PyObject *callable, PyObject *one, PyObject *two, PyObject *three) {
    Py_INCREF(callable);
    int result = done(PyObject_CallFunctionObjArgs(callable, one, two, three, NULL));
    Py_DECREF(callable);
    return result;
}

/* The same with a method of what a field holds. */
static inline int tell(PyObject *owner, PyObject *name, PyObject *one, PyObject *two, PyObject *three) {
    Py_INCREF(owner);
    int result = done(PyObject_CallMethodObjArgs(owner, name, one, two, three, NULL));
    Py_DECREF(owner);
    return result;
}

/* An integer attribute; 0 with an error set if there is none. */
int64_t integer_of(PyObject *owner, PyObject *name);
/* `step >= owner.due`; -1 with an error set. */
int is_due(PyObject *owner, int64_t step);
PyObject *interned(const char *text);
int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);

/* Heap types with members that are objects: `objects` are their offsets, ending with 0. */
int visit_members(PyObject *self, const size_t *objects, visitproc visit, void *arg);
int clear_members(PyObject *self, const size_t *objects);
void free_members(PyObject *self, const size_t *objects);
#define COLLECTED_MEMBERS \
    static int traverse(PyObject *self, visitproc visit, void *arg) { \
        return visit_members(self, objects, visit, arg); \
    } \
    static int clear(PyObject *self) { return clear_members(self, objects); } \
    static void dealloc(PyObject *self) { free_members(self, objects); }

/* ring.c */
/* The writer whose append, or append_row, this is, if its rows have these columns; else NULL. */
Writer *writer_of_append(PyObject *function, const char *codes);
Writer *writer_of_append_row(PyObject *function, const char *codes);
int64_t write_row(Writer *writer, const Field *fields);
int add_ring(PyObject *module);

/* guard.c */
int add_guard(PyObject *module);

/* recorder.c */
int trains_here(Recorder *recorder, int64_t now);
int backward_begins(Recorder *recorder, int64_t now, const double *loss, double share);
int backward_ends(Recorder *recorder, int64_t now, int64_t start);
int optimizer_begins(Recorder *recorder, int64_t now);
int optimizer_ends(Recorder *recorder, int64_t now);
int end_step(Recorder *recorder, int64_t now, PyObject *boundary, double lr, int64_t skipped);
static inline int64_t known_ns(const Recorder *recorder) {
    return recorder->forward_ns + recorder->backward_ns + recorder->data_ns + recorder->comm_ns;
}
int add_recorder(PyObject *module);

/* losses.c, optimizers.c */
int add_losses(PyObject *module);
int add_optimizers(PyObject *module);

#endif
