// Counts the instructions of one Python call under `valgrind --tool=callgrind`; outside valgrind only makes the call.
// callgrind.h comes with torch. Python.h is not needed for one function of the stable ABI, and may not be installed.
#include "callgrind.h"
#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

extern "C" {

struct _object;
_object *PyObject_CallNoArgs(_object *callable);

__attribute__((visibility("default"))) int layerbench_under_valgrind() { return RUNNING_ON_VALGRIND; }

// Until this is called, all runs at the speed of valgrind's translation alone. From now on large blocks are mapped each
// by itself: how long glibc searches its free lists depends on all that was ever freed.
__attribute__((visibility("default"))) void layerbench_start() {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 4096);
#endif
    CALLGRIND_START_INSTRUMENTATION;
}

// callable(): its instructions and those of all that it calls become a dump of their own, described by `name`.
__attribute__((visibility("default"))) _object *layerbench_count(_object *callable, const char *name) {
    CALLGRIND_TOGGLE_COLLECT;
    _object *result = PyObject_CallNoArgs(callable);
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(name);
    return result;
}
}
