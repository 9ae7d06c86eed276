//! Executors: one device and one loaded member each.
