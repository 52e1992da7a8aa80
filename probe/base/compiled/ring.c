/* Writer: rows of a ring, as the closures of recording/ring.py write them: same bytes, same numbers. */

#include "hot.h"

PyTypeObject *writer_type;
static PyObject *struct_error;

/* As zlib's: the sums stay below 2^32 for the longest row. */
static uint32_t adler32(const unsigned char *data, int64_t size) {
    uint32_t low = 1, high = 0;
    for (int64_t i = 0; i < size; i++) {
        low += data[i];
        high += low;
    }
    return (high % 65521) << 16 | (low % 65521);
}

/* Bytes of a field; 0 for a code that no row has. */
static int size_of(char code) {
    return code == 'q' || code == 'd' ? 8 : code == 'I' ? 4 : code == 'b' ? 1 : 0;
}

static int wrong_value(void) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_SetString(struct_error, "a value does not fit its column");
    }
    return -1;
}

static int pack_value(unsigned char *to, char code, PyObject *value) {
    if (code == 'd') {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) return wrong_value();
        memcpy(to, &number, 8);
        return 0;
    }
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) return wrong_value();
    if (code == 'q') {
        int64_t kept = number;
        memcpy(to, &kept, 8);
    } else if (code == 'I') {
        if (number < 0 || number > UINT32_MAX) {
            PyErr_SetString(struct_error, "a string number does not fit its column");
            return -1;
        }
        uint32_t kept = (uint32_t)number;
        memcpy(to, &kept, 4);
    } else {
        if (number < INT8_MIN || number > INT8_MAX) {
            PyErr_SetString(struct_error, "a boolean does not fit its column");
            return -1;
        }
        *to = (unsigned char)(int8_t)number;
    }
    return 0;
}

/* Where row `number` lies; NULL once closed. */
static unsigned char *place_of(Writer *writer, int64_t number) {
    int64_t at = number % writer->rows;
    if (at < 0) at += writer->rows;
    return writer->place == NULL ? NULL : writer->place + at * writer->row_bytes;
}

/* Number and checksum behind the fields, and all of it into the map; `at`: the end of the fields. */
static void store(Writer *writer, unsigned char *row, unsigned char *at, int64_t number) {
    unsigned char *place = place_of(writer, number);
    if (place == NULL) return;
    memcpy(at, &number, 8);
    int64_t size = writer->row_bytes - 4;
    uint32_t check = adler32(row, size);
    memcpy(row + size, &check, 4);
    memcpy(place, row, (size_t)writer->row_bytes);
}

int64_t write_row(Writer *writer, const Field *fields) {
    unsigned char row[MOST_ROW_BYTES], *at = row;
    int64_t number = ++writer->newest;
    for (int i = 0; i < writer->fields; i++) {
        switch (writer->codes[i]) {
        case 'd':
        case 'q': memcpy(at, &fields[i], 8); at += 8; break;
        case 'I': { uint32_t kept = (uint32_t)fields[i].integer; memcpy(at, &kept, 4); at += 4; break; }
        default: *at++ = (unsigned char)(int8_t)fields[i].integer;
        }
    }
    store(writer, row, at, number);
    return number;
}

static PyObject *number_written(int64_t number) { return PyLong_FromLongLong(number); }

static int fits(Writer *writer, Py_ssize_t given_count) {
    if (given_count == writer->fields) return 1;
    PyErr_Format(struct_error, "a row has %d fields, not %zd", writer->fields, given_count);
    return 0;
}

static PyObject *append(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    Writer *writer = (Writer *)self;
    unsigned char row[MOST_ROW_BYTES], *at = row;
    int64_t number = ++writer->newest;
    if (!fits(writer, count)) return NULL;
    for (int i = 0; i < writer->fields; i++) {
        if (pack_value(at, writer->codes[i], values[i]) < 0) return NULL;
        at += size_of(writer->codes[i]);
    }
    store(writer, row, at, number);
    return number_written(number);
}

static PyObject *append_row(PyObject *self, PyObject *values) {
    Writer *writer = (Writer *)self;
    unsigned char row[MOST_ROW_BYTES], *at = row;
    int64_t number = ++writer->newest;
    if (!PyList_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "append_row takes a list");
        return NULL;
    }
    if (!fits(writer, PyList_Size(values))) return NULL;
    for (int i = 0; i < writer->fields; i++) {
        PyObject *value = PyList_GetItem(values, i);
        if (value == NULL || pack_value(at, writer->codes[i], value) < 0) return NULL;
        at += size_of(writer->codes[i]);
    }
    store(writer, row, at, number);
    return number_written(number);
}

/* put(number, *fields) from field `first` on: what is before it stays. */
static PyObject *put_from(Writer *writer, int first, PyObject *const *values, Py_ssize_t count) {
    unsigned char row[MOST_ROW_BYTES], *at = row;
    if (count != writer->fields - first + 1) {
        PyErr_Format(struct_error, "a number and %d fields are needed", writer->fields - first);
        return NULL;
    }
    long long number = PyLong_AsLongLong(values[0]);
    if (number == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < first; i++) at += size_of(writer->codes[i]);
    for (int i = first; i < writer->fields; i++) {
        if (pack_value(at, writer->codes[i], values[1 + i - first]) < 0) return NULL;
        at += size_of(writer->codes[i]);
    }
    if (first) {
        unsigned char *place = place_of(writer, number);
        size_t kept = 0;
        for (int i = 0; i < first; i++) kept += (size_t)size_of(writer->codes[i]);
        if (place != NULL) memcpy(row, place, kept);
    }
    store(writer, row, at, number);
    return number_written(number);
}

static PyObject *put(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    return put_from((Writer *)self, 0, values, count);
}

/* rest(first): a put of the fields from that one on. Its self is a tuple of the writer and the number. */
static PyObject *put_rest(PyObject *self, PyObject *const *values, Py_ssize_t count) {
    PyObject *writer = PyTuple_GetItem(self, 0), *first = PyTuple_GetItem(self, 1);
    return put_from((Writer *)writer, (int)PyLong_AsLong(first), values, count);
}

static PyMethodDef rest_definition = {
    "put", (PyCFunction)(void (*)(void))put_rest, METH_FASTCALL, "put(number, *fields), the last fields only",
};

static PyObject *rest(PyObject *self, PyObject *first) {
    long number = PyLong_AsLong(first);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (number < 0 || number >= ((Writer *)self)->fields) {
        PyErr_SetString(PyExc_ValueError, "no such field");
        return NULL;
    }
    PyObject *both = PyTuple_Pack(2, self, first);
    if (both == NULL) return NULL;
    PyObject *found = PyCFunction_NewEx(&rest_definition, both, NULL);
    Py_DECREF(both);
    return found;
}

static PyObject *close_writer(PyObject *self, PyObject *unused) {
    Writer *writer = (Writer *)self;
    (void)unused;
    writer->place = NULL;
    Py_CLEAR(writer->view);
    return PyLong_FromLongLong(writer->newest);
}

/* Writer(address, view, codes, rows): `address` of the first row, which `view` keeps mapped. */
static PyObject *new_writer(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    unsigned long long address;
    PyObject *view;
    const char *codes;
    long long rows;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "KOsL", &address, &view, &codes, &rows)) return NULL;
    size_t fields = strlen(codes);
    int64_t row_bytes = 8 + 4;
    int known = 1;
    for (size_t i = 0; i < fields; i++) {
        row_bytes += size_of(codes[i]);
        known = known && size_of(codes[i]);
    }
    if (!known || rows < 1 || fields < 1 || fields > MOST_FIELDS || row_bytes > MOST_ROW_BYTES || !address) {
        PyErr_SetString(PyExc_ValueError, "rows that the compiled writer does not write");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Writer *writer = (Writer *)allocate(type, 0);
    if (writer == NULL) return NULL;
    Py_INCREF(view);
    writer->view = view;
    writer->place = (unsigned char *)(uintptr_t)address;
    writer->rows = rows;
    writer->row_bytes = row_bytes;
    writer->fields = (int)fields;
    memcpy(writer->codes, codes, fields + 1);
    return (PyObject *)writer;
}

static Writer *writer_behind(PyObject *function, PyCFunction expected, const char *codes) {
    if (function == NULL || !PyCFunction_CheckExact(function)) return NULL;
    if (PyCFunction_GetFunction(function) != expected) return NULL;
    Writer *writer = (Writer *)PyCFunction_GetSelf(function);
    return strcmp(writer->codes, codes) == 0 ? writer : NULL;
}

Writer *writer_of_append(PyObject *function, const char *codes) {
    return writer_behind(function, (PyCFunction)(void (*)(void))append, codes);
}

Writer *writer_of_append_row(PyObject *function, const char *codes) {
    return writer_behind(function, append_row, codes);
}

static const size_t objects[] = {offsetof(Writer, view), 0};
static int traverse(PyObject *self, visitproc visit, void *arg) {
    return visit_members(self, objects, visit, arg);
}
/* A map must not be let go while its address is known. */
static int clear(PyObject *self) {
    ((Writer *)self)->place = NULL;
    return clear_members(self, objects);
}
static void dealloc(PyObject *self) { free_members(self, objects); }

static PyMethodDef methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, "Write a row; its number."},
    {"append_row", append_row, METH_O, "The same with a list."},
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, "Write that row again."},
    {"rest", rest, METH_O, "A put of the fields from that one on."},
    {"close", close_writer, METH_NOARGS, "Write nothing any more; the number of rows written."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, new_writer}, {Py_tp_methods, methods}, {Py_tp_traverse, traverse},
    {Py_tp_clear, clear}, {Py_tp_dealloc, dealloc}, {0, NULL},
};
static PyType_Spec spec = {
    "probe.base.compiled._hot.Writer", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};

int add_ring(PyObject *module) {
    PyObject *library = PyImport_ImportModule("struct");
    if (library == NULL) return -1;
    struct_error = PyObject_GetAttrString(library, "error");
    Py_DECREF(library);
    return struct_error == NULL ? -1 : add_type(module, &spec, &writer_type);
}
