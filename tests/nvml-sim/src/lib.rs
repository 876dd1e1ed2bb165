//! A libnvidia-ml.so that answers from a scenario file, for tests on machines with no GPU.
