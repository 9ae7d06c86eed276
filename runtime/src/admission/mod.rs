//! Admission: reading, rendering, queueing and finishing, off the event loop.
