// Makes a library of operators importable (ext/setup.py): importing it loads it, and that registers them.
#include <Python.h>

#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
#define TEXT(name) #name
#define NAME(name) TEXT(name)

PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() {
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, NAME(TORCH_EXTENSION_NAME), nullptr, -1, nullptr,
                                 nullptr,               nullptr,                    nullptr, nullptr};
    return PyModule_Create(&module);
}
