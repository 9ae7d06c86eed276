//! Starting, watching and ending executors.
