/* Loops in C that an attach must not disturb: each returns how many of its answers were wrong. */
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

/* Allocates and frees without pause: a thread that is caught here most likely holds malloc's lock. */
long allocate(double seconds) {
    long wrong = 0;
    unsigned seed = 1;
    char *kept[64] = {0};
    for (double end = now() + seconds; now() < end;) {
        for (int round = 0; round < 2000; round++) {
            seed = seed * 1664525u + 1013904223u;
            int slot = seed >> 26;
            unsigned size = 8 + (seed >> 12) % 4000;
            if (kept[slot] && kept[slot][0] != (char)slot) wrong++;
            free(kept[slot]);
            kept[slot] = malloc(size);
            kept[slot][0] = (char)slot;
        }
    }
    for (int slot = 0; slot < 64; slot++) free(kept[slot]);
    return wrong;
}

/* Keeps live values in vector registers all the time, calls nothing. */
long multiply(long rounds) {
    long wrong = 0;
    for (long round = 0; round < rounds; round++) {
        double a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
        for (int i = 0; i < 20000; i++) {
            a = a * 0.5 + 1; b = b * 0.5 + 2; c = c * 0.5 + 3; d = d * 0.5 + 4; e = e * 0.5 + 5; f = f * 0.5 + 6;
            __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f));
        }
        if (a != 2 || b != 4 || c != 6 || d != 8 || e != 10 || f != 12) wrong++;
    }
    return wrong;
}
