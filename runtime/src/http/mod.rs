//! Routes, keys, limits, and the one table from error classes to statuses.
