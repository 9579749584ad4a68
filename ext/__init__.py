"""The native operators: kernels without torch, thin torch bindings, and the build."""
